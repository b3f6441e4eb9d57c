#!/usr/bin/env python3
"""A reward server as OpenRLHF asks it: reward { source { remote_url: "http://127.0.0.1:5000/get_reward" } }

python3 examples/rewards/http_server.py [port]
"""
import http.server
import json
import sys


def get_rewards(queries, prompts, labels):
    answers = [query[len(prompt):] for query, prompt in zip(queries, prompts)]
    rewards = [float(label in answer) for answer, label in zip(answers, labels)]
    return {"rewards": rewards, "scores": rewards, "extra_logs": {"characters": [len(a) for a in answers]}}


class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 128  # connections that may wait to be accepted; the standard library's 5 are soon full


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        reply = json.dumps(get_rewards(request["query"], request["prompts"], request["labels"])).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply)

    def log_message(self, *_):
        pass


server = Server(("127.0.0.1", int(sys.argv[1]) if len(sys.argv) > 1 else 5000), Handler)
print(f"listening on port {server.server_port}", flush=True)
server.serve_forever()
