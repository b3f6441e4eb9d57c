// What gRPC says of itself, in this process's log.
#pragma once

namespace quartet {

// From now on gRPC's own lines are ours; of those of one place in its code the first, then one a minute with their
// number: whoever can connect can bring them about, by handshakes that fail. Thread safe.
void TakeGrpcLog();

}  // namespace quartet
