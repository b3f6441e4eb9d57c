#include "core/service/ranks/addresses/rendezvous.h"

#include <gtest/gtest.h>

#include <memory>
#include <new>

#include "core/comm/store/local_store.h"

namespace quartet {
namespace {

// One for which there is no memory.
class FullStore final : public KeyValueStore {
 public:
  absl::Status Set(const std::string&, const std::string&) override { throw std::bad_alloc(); }
  absl::StatusOr<std::string> CompareSet(const std::string&, const std::string&, const std::string&) override {
    throw std::bad_alloc();
  }
  absl::StatusOr<std::vector<std::string>> Wait(const std::vector<std::string>&, absl::Duration) override {
    throw std::bad_alloc();
  }
  absl::StatusOr<int64_t> Add(const std::string&, int64_t) override { throw std::bad_alloc(); }
  absl::StatusOr<bool> Delete(const std::string&) override { throw std::bad_alloc(); }
};

// It waits in slices.
TEST(Rendezvous, SaysForHowLongItHasWaitedAndForWhat) {
  const std::unique_ptr<KeyValueStore> local = MakeLocalStore();
  ASSERT_TRUE(local->Set("a", "1").ok());
  GatedStore gate;
  gate.Open(local.get());
  EXPECT_EQ(gate.Wait({"a", "b", "c"}, absl::Milliseconds(250)).status(),
            absl::DeadlineExceededError("no value for b, c within 250ms"));
}

TEST(Rendezvous, SaysThatThereIsNoMemory) {
  FullStore store;
  RendezvousService service(&store);
  RendezvousSetRequest set, compare_set;
  compare_set.set_expected("");
  RendezvousSetReply set_reply;
  RendezvousWaitReply wait_reply;
  RendezvousAddReply add_reply;
  RendezvousDeleteReply delete_reply;
  for (const grpc::Status& status :
       {service.Set(nullptr, &set, &set_reply), service.Set(nullptr, &compare_set, &set_reply),
        service.Wait(nullptr, &RendezvousWaitRequest::default_instance(), &wait_reply),
        service.Add(nullptr, &RendezvousAddRequest::default_instance(), &add_reply),
        service.Delete(nullptr, &RendezvousDeleteRequest::default_instance(), &delete_reply)}) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << status.error_message();
  }
}

}  // namespace
}  // namespace quartet
