"""The model that is served: it makes tokens of what is asked, as in training, and has them continued."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from jinja2 import TemplateError

from corral.engine.data.chat import NoChatTemplate, Renderer
from corral.engine.data.prompt_form import PromptForm
from corral.engine.data.sequences import SamplingParams
from corral.engine.engine import Engine
from corral.engine.environments.protocol import with_system
from corral.engine.eval_and_sample import end_tokens
from corral.engine.serving.generation import GenerationLoop, TokenStream
from corral.engine.serving.requests import GenerationRequest, RequestProblem
from corral.engine.serving.text import AnswerText
from corral.recipes.train_tables import Train


@dataclass(frozen=True)
class TokenizedRequest:
    """The tokens of each prompt, and how they are continued."""

    prompts: Sequence[list[int]]
    params: SamplingParams


class ServedModel:
    """`context` is the most tokens of a prompt and its answer; `form` how the model was asked in training."""

    def __init__(
        self, name: str, engine: Engine, train: Train, form: PromptForm | None, *, rows: int, context: int
    ) -> None:
        self.name, self.context = name, context
        self.tokenizer = engine.loaded.tokenizer
        # As it was sampled in training, unless a request says otherwise.
        self.temperature = train.grpo.temperature if train.recipe == "grpo" else 1.0
        self._train, self._form = train, form
        self._renderer = Renderer(self.tokenizer, thinking=train.thinking)
        self._ends = end_tokens(engine)
        self._words = engine.loaded.model.get_input_embeddings().num_embeddings
        self.loop = GenerationLoop(engine.sampler(rows=rows, context=context, usual=context))

    def question(self, asked: GenerationRequest) -> TokenizedRequest:
        """RequestProblem where the model cannot be asked that."""
        if asked.model != self.name:
            raise RequestProblem(
                f"the model {asked.model[:80]!r} is not served here; this is {self.name!r}",
                param="model",
                code="model_not_found",
                status=404,
            )
        prompts = [self._chat(asked)] if asked.is_chat else [self._plain(one) for one in asked.prompts]
        longest = max(len(prompt) for prompt in prompts)
        room = self.context - longest
        most = room if asked.max_tokens is None else asked.max_tokens
        if most < 1 or most > room:
            raise RequestProblem(
                f"the prompt has {longest} tokens and {most if most > 0 else 1} are to follow;"
                f" this server's context is {self.context} tokens",
                param="messages" if asked.is_chat else "prompt",
                code="context_length_exceeded",
            )
        params = SamplingParams(
            max_tokens=most,
            temperature=asked.temperature,
            top_p=asked.top_p,
            seed=asked.seed,
            stop=asked.stop,
            stop_tokens=self._ends,
        )
        return TokenizedRequest([prompt for prompt in prompts for _ in range(asked.n)], params)

    def answer(self, question: TokenizedRequest) -> list[TokenStream]:
        """A stream for each prompt; the seeds count up, so that the choices of one request differ."""
        return [
            self.loop.start(list(prompt), replace(question.params, seed=question.params.seed + number))
            for number, prompt in enumerate(question.prompts)
        ]

    def text(self, question: TokenizedRequest) -> AnswerText:
        return AnswerText(self.tokenizer, question.params.stop)

    def without_end(self, tokens: Sequence[int]) -> list[int]:
        """The mark of the end is no part of an answer's text."""
        return list(tokens[:-1] if tokens and tokens[-1] in self._ends else tokens)

    def _chat(self, asked: GenerationRequest) -> list[int]:
        """As `corral sample` asks: a single message is plain text to a model that was trained on such."""
        messages = list(asked.messages or ())
        if self._form is PromptForm.TEXT and [one["role"] for one in messages] == ["user"]:
            return self._plain(messages[0]["content"])
        try:
            return self._renderer.prompt(with_system(messages, self._train.system))
        except NoChatTemplate as error:
            raise RequestProblem(
                f"{error}; ask by completions, or with a single user message", param="messages"
            ) from None
        except TemplateError as error:
            raise RequestProblem(
                f"the model's chat template refuses these messages: {error}", param="messages"
            ) from None

    def _plain(self, prompt: str | tuple[int, ...]) -> list[int]:
        if isinstance(prompt, tuple):
            if max(prompt) >= self._words:
                raise RequestProblem(
                    f"token {max(prompt)} is not in the model's vocabulary of {self._words}", param="prompt"
                )
            return list(prompt)
        tokens = self._renderer.plain(prompt)
        if not tokens:
            raise RequestProblem(
                "the prompt is empty, and this model has no mark to begin with", param="prompt"
            )
        return tokens
