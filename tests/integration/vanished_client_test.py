#!/usr/bin/env python3
"""A client that is gone without a word: its connection stands, and nothing comes through it any more. The
router asks, hears nothing, and lets its requests go, here and at the workers."""

import select
import socket
import threading
import unittest

import grpc

from cluster import Cluster, await_condition, greedy, ids_prompt, pb_grpc

KEEPALIVE = 20 + 10  # Seconds: until it is asked, and for its answer.


class Cable:
    """A port whose connections lead to `target` until it is cut; then they stay as they are."""

    def __init__(self, target):
        self._target = target.rsplit(":", 1)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets, self._cut = [self._listener], threading.Event()
        self.address = "127.0.0.1:%d" % self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._forward)
        self._thread.start()

    def cut(self):
        self._cut.set()
        self._thread.join()

    def close(self):
        for one in self._sockets:
            one.close()

    def _forward(self):
        other = {}
        while not self._cut.is_set():
            for one in select.select([self._listener, *other], [], [], 0.01)[0]:
                if one is self._listener:
                    near = one.accept()[0]
                    far = socket.create_connection((self._target[0], int(self._target[1])))
                    other.update({near: far, far: near})
                    self._sockets += [near, far]
                    continue
                data = one.recv(65536)
                if data:
                    other[one].sendall(data)
                else:
                    del other[one]


class VanishedClientTest(unittest.TestCase):
    def test_its_requests_end_and_leave_nothing_behind(self):
        # Nobody is cut for being slow.
        cluster = Cluster("--router_flags=--slow_reader_timeout=1h",
                          "--worker_flags=--kv_cache_bytes=64MiB,--max_running_requests=24,--slow_reader_timeout=1h")
        cable = Cable(cluster.router)
        channel = grpc.insecure_channel(cable.address)
        # More than all workers make in the time.
        request = greedy(ids_prompt(range(100, 200)), 3000)
        request.sampling.n = 128
        stream = pb_grpc.InferenceServiceStub(channel).Generate(request)
        next(stream)
        self.assertEqual(cluster.metric("router", "baton_running_requests"), 1)
        cable.cut()
        # Not baton_running_requests: a request gives its place up when its client reads no more.
        seconds = await_condition(lambda: cluster.metric("router", "baton_requests_total", 'outcome="cancelled"') == 1,
                                  "a reaped client")
        print("let go %.1f s after the client had vanished; keepalive is %d s" % (seconds, KEEPALIVE))
        seconds = await_condition(cluster.is_idle, "free blocks")
        print("every block free %.3f s later" % seconds)
        cable.close()
        channel.close()
        cluster.stop()


if __name__ == "__main__":
    unittest.main()
