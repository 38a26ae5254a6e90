"""A conversation: what was said, and how a reply to a question back joins the first question."""

from dataclasses import dataclass, field

from signatures.records import Answer

MAX_TURNS = 6
"""Turns that are kept; older ones rarely matter and cost tokens in every later question."""
MAX_CHARS = 300
"""Characters of each turn's answer that are kept."""


@dataclass
class Conversation:
    """The turns of one user."""

    turns: list[tuple[str, str]] = field(default_factory=list)
    _open_question: str = ""

    @property
    def history(self) -> str:
        """Earlier turns as text, oldest first; "" at the start and right after a question back."""
        if self._open_question:
            return ""
        return "\n".join(f"用户：{said}\n助手：{answer}" for said, answer in self.turns[-MAX_TURNS:])

    @property
    def asked_back(self) -> bool:
        """Whether the next line answers a question back; what is still unclear then is searched, not asked again."""
        return bool(self._open_question)

    def question(self, line: str) -> str:
        """What to ask the program: after a question back, the first question with the user's addition."""
        return f"{self._open_question}（补充：{line}）" if self._open_question else line

    def add(self, line: str, record: Answer) -> None:
        """Remember a turn."""
        if record.status == "clarify":
            self._open_question = self.question(line)
            return
        self.turns.append((self.question(line), record.answer[:MAX_CHARS]))
        self._open_question = ""
