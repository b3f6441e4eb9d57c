#include "core/comm/transport/store_adapter.h"

#include <stdexcept>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace quartet {
namespace {

std::string ToString(const std::vector<uint8_t>& bytes) { return std::string(bytes.begin(), bytes.end()); }
std::vector<uint8_t> ToBytes(const std::string& value) { return std::vector<uint8_t>(value.begin(), value.end()); }

template <class T>
T OrThrow(absl::StatusOr<T> value) {
  if (!value.ok()) throw std::runtime_error(absl::StrCat("rendezvous store: ", value.status().message()));
  return *std::move(value);
}

}  // namespace

StoreAdapter::StoreAdapter(KeyValueStore* store, std::string prefix, absl::Duration timeout)
    : c10d::Store(absl::ToChronoMilliseconds(timeout)), store_(store), prefix_(std::move(prefix)) {}

std::vector<std::string> StoreAdapter::Prefixed(const std::vector<std::string>& keys) const {
  std::vector<std::string> prefixed;
  for (const std::string& key : keys) prefixed.push_back(prefix_ + key);
  return prefixed;
}

c10::intrusive_ptr<c10d::Store> StoreAdapter::clone() {
  return c10::make_intrusive<StoreAdapter>(store_, prefix_, absl::FromChrono(timeout_));
}

void StoreAdapter::set(const std::string& key, const std::vector<uint8_t>& value) {
  absl::Status status = store_->Set(prefix_ + key, ToString(value));
  if (!status.ok()) throw std::runtime_error(absl::StrCat("rendezvous store: ", status.message()));
}

std::vector<uint8_t> StoreAdapter::compareSet(const std::string& key, const std::vector<uint8_t>& expected,
                                              const std::vector<uint8_t>& desired) {
  return ToBytes(OrThrow(store_->CompareSet(prefix_ + key, ToString(expected), ToString(desired))));
}

std::vector<uint8_t> StoreAdapter::get(const std::string& key) {
  return ToBytes(OrThrow(store_->Wait({prefix_ + key}, absl::FromChrono(timeout_)))[0]);
}

int64_t StoreAdapter::add(const std::string& key, int64_t amount) {
  return OrThrow(store_->Add(prefix_ + key, amount));
}

bool StoreAdapter::deleteKey(const std::string& key) { return OrThrow(store_->Delete(prefix_ + key)); }

bool StoreAdapter::check(const std::vector<std::string>& keys) {
  auto values = store_->Wait(Prefixed(keys), absl::ZeroDuration());
  if (values.ok()) return true;
  if (absl::IsDeadlineExceeded(values.status())) return false;
  OrThrow(std::move(values));
  return false;
}

int64_t StoreAdapter::getNumKeys() { throw std::runtime_error("rendezvous store: keys are not counted"); }

void StoreAdapter::wait(const std::vector<std::string>& keys) { wait(keys, timeout_); }

void StoreAdapter::wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) {
  OrThrow(store_->Wait(Prefixed(keys), absl::FromChrono(std::min(timeout, timeout_))));
}

}  // namespace quartet
