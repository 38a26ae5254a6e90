"""A language model endpoint for tests: real HTTP on loopback, replies decided by a function.

    with scripted_lm(lambda call: {"intent": "FACT_LOOKUP", ...}) as lm:
        settings = load_settings(lm=lm.line)

The function gets a `Call` and returns a dict (sent as JSON text), a str (sent as it is) or a `Reply`.
`Call.fields` names the output fields of the signature, so that one function can play every role.
`closed_port()` is the address of an endpoint that refuses connections.
"""

import json
import math
import re
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

LABELS = ("是", "否")


@dataclass(frozen=True)
class Call:
    """One request as the endpoint saw it."""

    body: dict[str, Any]
    headers: dict[str, str]

    @property
    def text(self) -> str:
        return "\n".join(str(message["content"]) for message in self.body["messages"])

    @property
    def fields(self) -> tuple[str, ...]:
        schema = self.body.get("response_format", {}).get("json_schema", {}).get("schema", {})
        return tuple(schema.get("properties", {}))

    @property
    def signature(self) -> str:
        """Which signature asks, told from its fields and inputs."""
        fields = set(self.fields)
        names = {
            "intent": "route",
            "verdicts": "relevance",
            "query": "rewrite" if "【tried_queries】" in self.text else "paraphrase",
            "standalone_question": "resolve",
            "parts": "decompose",
            "passage": "imagine",
            "clarification_questions": "ask_back",
            "questions": "passage_questions",
            "summary": "summary",
            "colour": "probe",
        }
        for name, signature in names.items():
            if name in fields:
                return signature
        if "verdict" in fields:
            return "grounding" if "以下是从知识库检索到的资料" in self.text else "utility"
        return "generate" if "以下是从知识库检索到的资料" in self.text else "reply"

    def input(self, name: str) -> str:
        """Value of an input field in the last message."""
        found = re.search(rf"【{name}】\n(.*?)(?:\n【|\Z)", self.body["messages"][-1]["content"], re.DOTALL)
        return found.group(1) if found else ""

    @property
    def passage_count(self) -> int:
        """Passages of this request; those of demonstrations stand in later messages."""
        return len(re.findall(r"(?m)^\[\d+\] ", self.body["messages"][0]["content"]))


@dataclass
class Reply:
    """A reply in full control.

    Attributes:
        text: The message's content; None sends null.
        status: HTTP status; other than 200 sends `error` as the body's error.
        finish: `finish_reason`.
        reasoning: `reasoning_content`.
        delay: Seconds before anything is sent; ends with the endpoint.
        probability: Of 是 at each place with a label; None sends no log-probabilities.
        logprobs: Tokens as (text, alternatives with their probability), instead of `probability`.
        headers: More headers.
        usage: Overrides of the usage record.
        raw: Sent as the body as it is, with `status`.
        cut: Close the connection in the middle of the body.
    """

    text: str | None = ""
    status: int = 200
    finish: str = "stop"
    reasoning: str | None = None
    delay: float = 0.0
    probability: float | list[float] | None = None
    logprobs: list[tuple[str, dict[str, float]]] | None = None
    error: Any = field(default_factory=lambda: {"message": "scripted error"})
    headers: dict[str, str] = field(default_factory=dict)
    usage: dict[str, Any] = field(default_factory=dict)
    raw: bytes | None = None
    cut: bool = False


Script = Callable[[Call], "Reply | dict[str, Any] | str"]


@dataclass
class ScriptedLM:
    """A running endpoint.

    Attributes:
        url: Its address, ending in /v1.
        calls: What was asked, in order.
    """

    url: str
    calls: list[Call] = field(default_factory=list)
    in_flight: int = 0
    most_in_flight: int = 0

    @property
    def line(self) -> str:
        """For `ADAPTIVE_RAG_LM`."""
        return f"scripted@{self.url}"

    def count(self, signature: str) -> int:
        return sum(call.signature == signature for call in self.calls)

    def asked(self, signature: str) -> list[Call]:
        return [call for call in self.calls if call.signature == signature]


@contextmanager
def scripted_lm(script: Script) -> Iterator[ScriptedLM]:
    """Start an endpoint that answers by `script`; stops at the end of the block."""
    lock = threading.Lock()
    ended = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # one packet a reply: small ones wait for each other otherwise

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            call = Call(body, {name.lower(): value for name, value in self.headers.items()})
            with lock:
                endpoint.calls.append(call)
                endpoint.in_flight += 1
                endpoint.most_in_flight = max(endpoint.most_in_flight, endpoint.in_flight)
            try:
                made = script(call)
                reply = made if isinstance(made, Reply) else Reply(_text(made))
                if ended.wait(reply.delay):
                    return
                self._send(reply, body)
            except (BrokenPipeError, ConnectionResetError):
                pass  # the client gave up, which some tests want
            finally:
                with lock:
                    endpoint.in_flight -= 1

        def _send(self, reply: Reply, body: dict[str, Any]) -> None:
            payload = completion(reply, body) if reply.status == 200 else {"error": reply.error}
            data = json.dumps(payload).encode() if reply.raw is None else reply.raw
            self.send_response(reply.status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            for name, value in reply.headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data[: len(data) // 2] if reply.cut else data)
            self.close_connection = self.close_connection or reply.cut

        def log_message(self, *arguments: object) -> None:
            """Silent."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

        def handle_error(self, request: Any, client_address: Any) -> None:
            """A client that goes away is no error; anything else is shown."""
            if not isinstance(sys.exception(), ConnectionError):
                super().handle_error(request, client_address)

    server = Server(("127.0.0.1", 0), Handler)
    endpoint = ScriptedLM(f"http://127.0.0.1:{server.server_port}/v1")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.002}, daemon=True)
    thread.start()
    try:
        yield endpoint
    finally:
        ended.set()
        server.shutdown()
        server.server_close()


@contextmanager
def closed_port() -> Iterator[str]:
    """Address of an endpoint that refuses: the port is bound, so that nobody else takes it, but not listening."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}/v1"


def completion(reply: Reply, body: dict[str, Any]) -> dict[str, Any]:
    """The body of a good reply to a request."""
    message: dict[str, Any] = {"role": "assistant", "content": reply.text}
    if reply.reasoning is not None:
        message["reasoning_content"] = reply.reasoning
    choice = {"index": 0, "message": message, "finish_reason": reply.finish}
    if reply.logprobs is not None and body.get("logprobs"):
        choice["logprobs"] = {"content": [_token(text, options) for text, options in reply.logprobs]}
    elif reply.probability is not None and body.get("logprobs"):
        choice["logprobs"] = {"content": _logprobs(reply.text or "", reply.probability)}
    prompt = sum(len(str(m["content"])) for m in body["messages"])
    usage = {"prompt_tokens": prompt, "completion_tokens": len(reply.text or ""), **reply.usage}
    return {"id": "x", "object": "chat.completion", "model": "scripted", "choices": [choice], "usage": usage}


def _text(made: dict[str, Any] | str) -> str:
    return made if isinstance(made, str) else json.dumps(made, ensure_ascii=False)


def _logprobs(text: str, probability: float | list[float]) -> list[dict[str, Any]]:
    """One token a character; at labels both alternatives, with the wanted probability of 是."""
    tokens, place = [], 0
    for char in text:
        if char not in LABELS:
            tokens.append(_token(char, {char: 0.9}))
            continue
        yes = probability[place] if isinstance(probability, list) else probability
        place += 1
        tokens.append(_token(char, dict(zip(LABELS, (yes, 1 - yes), strict=True))))
    return tokens


def _token(text: str, options: dict[str, float]) -> dict[str, Any]:
    logs = {option: math.log(max(share, 1e-9)) for option, share in options.items()}
    top = [{"token": option, "logprob": value} for option, value in logs.items()]
    return {"token": text, "logprob": logs.get(text, -20.0), "top_logprobs": top}


def helpful(**overrides: Any) -> Script:
    """A script that plays every role well; `overrides` replace the reply of a signature.

    An override is a reply, or a function of the call.
    """

    def script(call: Call) -> "Reply | dict[str, Any] | str":
        made = overrides.get(call.signature)
        if made is not None:
            return made(call) if callable(made) else made
        match call.signature:
            case "route":
                return {
                    "intent": "FACT_LOOKUP",
                    "strategy": "fast_retrieval",
                    "confidence": 95,
                    "reasoning": "问一个事实",
                    "clarification_questions": [],
                }
            case "relevance":
                verdicts = " ".join(f"{n}是" for n in range(1, call.passage_count + 1))
                return Reply(json.dumps({"verdicts": verdicts}, ensure_ascii=False), probability=0.9)
            case "grounding" | "utility":
                return Reply('{"verdict": "是", "reason": "有依据"}', probability=0.9)
            case "generate":
                return {"answer": "本店支持七天无理由退货[1]。"}
            case "reply":
                return {"answer": "您好，请问有什么可以帮您？"}
            case "rewrite":
                return {"query": f"改写后的检索语句 {len(call.input('tried_queries').splitlines())}"}
            case "paraphrase":
                return {"query": "正式说法"}
            case "resolve":
                return {"standalone_question": call.input("question")}
            case "decompose":
                return {"parts": [call.input("question")]}
            case "imagine":
                return {"passage": "假想的段落"}
            case "passage_questions":
                return {"questions": ["有几天？", "怎么申请？", "能不能结转？", "How many days?"]}
            case "summary":
                return {"summary": "一句话的摘要"}
            case "ask_back":
                return {"clarification_questions": ["您问的是哪个型号？", "您问的是哪一年的规定？"]}
        raise AssertionError(f"unknown signature with fields {call.fields}")

    return script
