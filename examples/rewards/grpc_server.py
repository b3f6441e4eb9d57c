#!/usr/bin/env python3
"""A reward server over gRPC: reward { source { remote_url: "grpc://127.0.0.1:5001" } }

pip install grpcio grpcio-tools
python3 -m grpc_tools.protoc -I. --python_out=. --grpc_python_out=. proto/reward.proto
PYTHONPATH=. python3 examples/rewards/grpc_server.py [port]
"""
import concurrent.futures
import sys

import grpc
from proto import reward_pb2, reward_pb2_grpc


class RewardModel(reward_pb2_grpc.RewardModelServicer):
    def Reward(self, request, context):
        results = []
        for item in request.items:
            right = item.response.strip() == item.label.strip()
            results.append(reward_pb2.RewardResult(reward=right, extra_logs={"characters": len(item.response)}))
        return reward_pb2.RewardReply(results=results)


server = grpc.server(concurrent.futures.ThreadPoolExecutor(max_workers=16))
reward_pb2_grpc.add_RewardModelServicer_to_server(RewardModel(), server)
port = server.add_insecure_port(f"127.0.0.1:{sys.argv[1] if len(sys.argv) > 1 else 5001}")
server.start()
print(f"listening on port {port}", flush=True)
server.wait_for_termination()
