// A gRPC server for a test.
#ifndef BATON_SERVER_EDGE_SERVED_FOR_TEST_H_
#define BATON_SERVER_EDGE_SERVED_FOR_TEST_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

namespace baton {

// On a free port of the loopback.
struct ServedForTest {
  // Borrows the service; nullptr: none.
  explicit ServedForTest(grpc::Service* service) {
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(),
                             &port);
    if (service != nullptr) builder.RegisterService(service);
    server = builder.BuildAndStart();
    endpoint = "127.0.0.1:" + std::to_string(port);
  }

  std::unique_ptr<grpc::Server> server;
  std::string endpoint;
};

}  // namespace baton

#endif  // BATON_SERVER_EDGE_SERVED_FOR_TEST_H_
