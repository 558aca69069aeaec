// Which processes may map each other's memory.
#ifndef BATON_COMM_HOST_ID_H_
#define BATON_COMM_HOST_ID_H_

#include <string>

namespace baton {

// Equal for processes of one boot of one machine that share the PID and IPC
// namespaces and the user: those can open each other's shared memory. Unique to
// the process where the system does not tell.
std::string ReadHostId();

}  // namespace baton

#endif  // BATON_COMM_HOST_ID_H_
