#ifndef BATON_SERVER_EDGE_VERSION_H_
#define BATON_SERVER_EDGE_VERSION_H_

namespace baton {

inline constexpr char kBatonVersion[] = "0.1.0";

}  // namespace baton

#endif  // BATON_SERVER_EDGE_VERSION_H_
