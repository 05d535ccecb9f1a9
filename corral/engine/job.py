"""One job from its spec to its output: check, load, run the recipe, write the result."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from transformers.utils.logging import disable_progress_bar

from corral.diloco.round_store import StoreError, StoreRefused
from corral.diloco.rounds import NotFinite, ReplicaReplaced
from corral.engine import eval_and_sample, inputs
from corral.engine.data.prompt_form import PromptForm, form_of
from corral.engine.data.row_order import RowOrder, RowShare
from corral.engine.data.rows import RowSet
from corral.engine.data.sft_dataset import MaskedSequence, RowCounts, SftDataset, build_dataset
from corral.engine.engine import Engine
from corral.engine.environments.process import EnvironmentProcess
from corral.engine.environments.run_environment import RunEnvironment, measure_prompts, open_environment
from corral.engine.errors import EngineError
from corral.engine.eval_and_sample import TrainedModel
from corral.engine.inputs import TrainingData
from corral.engine.model.load import LoadedModel
from corral.engine.reports import output, report
from corral.engine.reports.events import EventWriter, TerminalOutput
from corral.engine.serving import serve
from corral.engine.spec import InvalidSpec, JobPaths, JobSpec, memory_retries, read
from corral.engine.training import checkpoints, grpo, sft
from corral.engine.training.checkpoints import CheckpointWriter
from corral.engine.training.evaluation import Evaluation
from corral.engine.training.guards import GuardMonitor, GuardStop
from corral.engine.training.outer_rounds import OuterRounds, ReplicaPlace
from corral.engine.training.peak_memory import PeakMemory
from corral.engine.training.stop_signal import StopRequested, StopSignal
from corral.engine.training.throughput import SetupClock, ThroughputMeter
from corral.engine.training.training_run import TrainingRun, is_out_of_memory
from corral.recipes import diloco
from corral.recipes.forecast import Forecast
from corral.recipes.models import UnknownModel
from corral.recipes.train import TrainError, effective_learning_rate, parse, to_table
from corral.recipes.train_tables import DataFacts, Train

Evaluator = Callable[[int], list[Evaluation]]
# What was asked for is wrong; a guard ended it; memory does not suffice. 1 is a fault of the engine. Of one
# of several replicas: its weights are of no use any more; the store where they meet is away.
REFUSED, GUARD, MEMORY, DIVERGED, AWAY = 2, 3, 4, 5, 6


def main(
    places: JobPaths,
    environ: Mapping[str, str],
    *,
    again: bool = False,
    debug: bool = False,
    began: float | None = None,
) -> int:
    """Run the job of `places.spec`; gives the exit code.

    `again`: go on from the newest checkpoint. `began`: when the process started, by time.perf_counter.
    """
    stop = StopSignal()
    stop.install()
    # Its bars are for terminals; here they would fill the run's log.
    disable_progress_bar()
    events = EventWriter(places.events, TerminalOutput())
    spec = None
    try:
        began = time.perf_counter() if began is None else began
        spec = read(places.spec)
        job = EngineJob(spec, places, environ, events, stop, again=again, began=began)
        with events.setting_up():
            job.run()
    except StopRequested:
        stop.die()
    except GuardStop as error:
        events.note(f"The run was stopped: {error.finding}")
        is_replica = spec is not None and spec.diloco is not None
        return _fail(error, DIVERGED if is_replica else GUARD, debug=debug)
    except StoreError as error:
        events.note(f"The replica was stopped: {error} {error.hint}")
        return _fail(error, code_of(error), debug=debug)
    except (EngineError, TrainError, UnknownModel) as error:
        return _fail(error, MEMORY if is_out_of_memory(error) else REFUSED, debug=debug)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return _fail(error, MEMORY, debug=debug)
    return 0


def code_of(error: StoreError) -> int:
    """How a replica ends that cannot go on."""
    if isinstance(error, NotFinite):
        return DIVERGED
    return REFUSED if isinstance(error, StoreRefused | ReplicaReplaced) else AWAY


def _fail(error: Exception, code: int, *, debug: bool) -> int:
    if debug:
        raise error
    problems = error.problems if isinstance(error, TrainError) else [str(error).strip()]
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)  # noqa: T201
    hint = getattr(error, "hint", "") or ("Lower micro_tokens or max_length." if code == MEMORY else "")
    if hint:
        print(f"hint: {hint}", file=sys.stderr)  # noqa: T201
    return code


@dataclass
class EngineJob:
    """`environ` is where the run's own variables and secrets are, for its environment's code."""

    spec: JobSpec
    places: JobPaths
    environ: Mapping[str, str]
    events: EventWriter
    stop: StopSignal
    again: bool = False
    began: float = field(default_factory=time.perf_counter)
    _times: output.RunTimes = field(default_factory=output.RunTimes)
    _memory: PeakMemory = field(default_factory=PeakMemory)
    _setup: SetupClock = field(default_factory=SetupClock)

    def run(self) -> None:
        self._setup.parts_s["start"] = time.perf_counter() - self.began
        train = parse(self.spec.model, self.spec.table)
        with ExitStack() as stack:
            if self.spec.task == "sample":
                self._sample(train, eval_and_sample.task_options(self.spec))
            elif self.spec.task == "serve":
                self._serve(train, serve.serve_options(self.spec))
            elif self.spec.task == "eval":
                self._evaluate(train, eval_and_sample.task_options(self.spec), stack)
            else:
                self._check_places()
                (self._sft if train.recipe == "sft" else self._grpo)(train, stack)

    def _check_places(self) -> None:
        """Alone, nothing of an earlier run is written over or mixed up with this one."""
        if self.places.inputs is not None:
            return
        if output.has_result(self.places.output):
            raise InvalidSpec(
                f"{self.places.output} is not empty", "Name another folder with --output, or remove it."
            )
        if checkpoints.found(self.places.checkpoints) and not self.again:
            raise InvalidSpec(
                f"{self.places.checkpoints} holds checkpoints of an earlier run",
                "Go on from them with --resume, name another folder with --checkpoints, or remove them.",
            )

    # -- recipes --------------------------------------------------------------------------------------

    def _sft(self, train: Train, stack: ExitStack) -> None:
        self.events.phase("reading the data")
        data = inputs.read_data(train, self.places)
        process = self.environment(train, stack) if train.environment else None
        loaded = self.load(train)
        examples = self.tokens_of(data.train, loaded, train)
        held_out = self.held_out(data, loaded, train)
        order = RowOrder(len(examples), self.spec.seed)
        # Steps are those of each replica: together they see every row as often as was asked for.
        total = train.steps or order.steps(train.batch_size * self.share.of, train.epochs or 1.0)
        forecast = inputs.forecast_run(train, loaded, examples.facts)
        engine = self.engine(train, loaded, forecast)
        longest, digests = max(examples.lengths), {"data": data.digest}
        training = self.training_run(
            train, engine, total=total, longest=longest, data=examples.facts, digests=digests
        )
        notes = [*data.notes, *_left_out(examples.counts)]
        evaluators = _loss_evaluators(engine, held_out)
        if process is not None:
            environment = self.measure_prompts(process, loaded, train)
            source = self.rollout_source(environment, engine, train, rows=len(environment.eval_tasks))
            evaluators.append(_scorer(environment, source, lambda rows: training.record.sample(rows)))
            notes += environment.notes
        training.evaluate_with = _all(evaluators) if evaluators else None
        self.finish(training, lambda: sft.run(training, examples, order), forecast, notes=notes)
        made = TrainedModel(engine, train, self.events, self.stop)
        samples = eval_and_sample.before_and_after(made, held_out)
        self.leave(training, forecast, data=data.digest, form=form_of(data.train[0]), samples=samples)

    def _grpo(self, train: Train, stack: ExitStack) -> None:
        process = self.environment(train, stack)
        loaded = self.load(train)
        environment = self.measure_prompts(process, loaded, train)
        forecast = inputs.forecast_run(train, loaded, environment.facts)
        engine = self.engine(train, loaded, forecast)
        digests = {"environment": process.description.fingerprint}
        training = self.training_run(
            train,
            engine,
            total=train.steps or 1,
            longest=environment.context,
            data=environment.facts,
            digests=digests,
        )
        at_once = train.prompts_per_step * train.grpo.group_size
        rows = min(at_once, (forecast.rows if forecast else 0) or at_once)
        rows = max(1, rows >> memory_retries(self.environ))
        source = self.rollout_source(environment, engine, train, rows=rows)
        training.evaluate_with = _scorer(environment, source, lambda rows: training.record.sample(rows))
        self.finish(training, lambda: grpo.run(training, source), forecast, notes=list(environment.notes))
        self.leave(training, forecast, data=process.description.fingerprint, form=PromptForm.CHAT)

    # -- what a run made ------------------------------------------------------------------------------

    def _evaluate(self, train: Train, ask: Mapping[str, Any], stack: ExitStack) -> None:
        if ask["data"] is not None:
            train = replace(train, eval_data=ask["data"], eval_fraction=0.0)
        train = replace(train, eval_rows=ask["rows"] or train.eval_rows)
        process = self.environment(train, stack) if train.environment else None
        data = inputs.read_data(train, self.places) if train.recipe == "sft" else None
        loaded = self.load(train)
        held_out = self.held_out(data, loaded, train) if data else []
        if not held_out and process is None:
            raise InvalidSpec(
                "the run held nothing out to evaluate on", "Name rows to evaluate on: `--data`."
            )
        engine = inputs.make_engine(train, loaded, self.places, None, seed=self.spec.seed, which=ask["which"])
        made = TrainedModel(engine, train, self.events, self.stop)
        evaluators = _loss_evaluators(engine, held_out)
        samples: list[report.Row] = list(eval_and_sample.before_and_after(made, held_out))
        if process is not None:
            environment = self.measure_prompts(process, loaded, train)
            source = self.rollout_source(
                environment, engine, train, rows=min(len(environment.eval_tasks), 64)
            )
            evaluators.append(_scorer(environment, source, samples.extend))
        said = eval_and_sample.evaluate(made, _all(evaluators), ask)
        self.places.output.mkdir(parents=True, exist_ok=True)
        report.write_json(self.places.output / "metrics.json", said)
        report.write_lines(self.places.output / "samples.jsonl", samples)

    def _sample(self, train: Train, ask: Mapping[str, Any]) -> None:
        loaded = self.load(train)
        engine = inputs.make_engine(train, loaded, self.places, None, seed=self.spec.seed, which=ask["which"])
        usual = train.grpo.temperature if train.recipe == "grpo" else ask["temperature"]
        if self.spec.ask.get("temperature") is None:
            ask = {**ask, "temperature": usual}
        trained = TrainedModel(engine, train, self.events, self.stop)
        rows = eval_and_sample.sample(trained, ask, inputs.prompt_form(train, self.places))
        self.places.output.mkdir(parents=True, exist_ok=True)
        report.write_lines(self.places.output / "samples.jsonl", rows)

    def _serve(self, train: Train, ask: Mapping[str, Any]) -> None:
        loaded = self.load(train)
        engine = inputs.make_engine(train, loaded, self.places, None, seed=self.spec.seed, which=ask["which"])
        trained = TrainedModel(engine, train, self.events, self.stop)
        serve.serve(trained, self.spec.name, ask, inputs.prompt_form(train, self.places))

    # -- parts of them --------------------------------------------------------------------------------

    def environment(self, train: Train, stack: ExitStack) -> EnvironmentProcess:
        self.events.phase("opening the environment")
        own = {name: self.environ[name] for name in self.spec.variables if name in self.environ}
        with self._setup.timed("environment"):
            return stack.enter_context(open_environment(train, self.places, own))

    def engine(self, train: Train, loaded: LoadedModel, forecast: Forecast | None) -> Engine:
        with self._setup.timed("adapter"):
            return inputs.make_engine(train, loaded, self.places, forecast, seed=self.spec.seed)

    def load(self, train: Train) -> LoadedModel:
        self.events.phase(f"loading {self.spec.model}")
        with self._setup.timed("load"):
            self._memory = PeakMemory.begin()
            with self.stop.interruptible():
                return inputs.load_model(train, self.spec, self.places)

    def measure_prompts(
        self, process: EnvironmentProcess, loaded: LoadedModel, train: Train
    ) -> RunEnvironment:
        with self._setup.timed("data"), self.stop.interruptible():
            return measure_prompts(process, loaded.tokenizer, train)

    def tokens_of(self, rows: RowSet, loaded: LoadedModel, train: Train, *, to: str = "train") -> SftDataset:
        self.events.phase(f"making tokens of {len(rows)} rows to {to} on")
        with self._setup.timed("data"), self.stop.interruptible():
            return build_dataset(rows, loaded.tokenizer, train)

    def held_out(self, data: TrainingData, loaded: LoadedModel, train: Train) -> list[MaskedSequence]:
        if data.held_out is None:
            return []
        found = self.tokens_of(data.held_out, loaded, train, to="evaluate")
        return [found[place] for place in range(min(len(found), train.eval_rows))]

    def rollout_source(
        self, environment: RunEnvironment, engine: Engine, train: Train, *, rows: int
    ) -> grpo.RolloutSource:
        seed, markers = self.spec.seed, inputs.thinking_markers(train, engine.loaded)
        return grpo.RolloutSource(
            lambda rows: environment.rollouts(engine, train, seed=seed, rows=rows),
            rows,
            environment.tasks,
            seed,
            markers,
        )

    def training_run(
        self,
        train: Train,
        engine: Engine,
        *,
        total: int,
        longest: int,
        data: DataFacts,
        digests: Mapping[str, Any],
    ) -> TrainingRun:
        facts = engine.loaded.facts
        config = {
            **to_table(train),
            "seed": self.spec.seed,
            "model_digest": engine.loaded.digest,
            "total_steps": total,
            **{f"{name}_digest": value for name, value in digests.items()},
        }
        rounds = self.rounds(engine, total=total)
        if rounds is not None:
            config |= {"diloco": diloco.to_table(rounds.settings), "replica": rounds.place.replica}
        return TrainingRun(
            train=train,
            total=total,
            rate=effective_learning_rate(train, facts),
            engine=engine,
            events=self.events,
            checkpoints=CheckpointWriter(self.places.checkpoints, config, self.events),
            guards=GuardMonitor(train.guards, mismatch_limit=train.grpo.mismatch_limit),
            meter=ThroughputMeter(*inputs.flops(train, facts, data), memory=self._memory),
            stop=self.stop,
            work=self.places.checkpoints / "work",
            headline="loss" if train.recipe == "sft" else "reward",
            longest=longest,
            share=self.share,
            rounds=rounds,
        )

    @property
    def share(self) -> RowShare:
        """What of the rows this process trains on."""
        return RowShare() if self.spec.diloco is None else RowShare(self.replica, self.spec.ranks.most)

    @property
    def replica(self) -> int:
        return int(self.environ.get("CORRAL_RANK") or 0)

    def rounds(self, engine: Engine, *, total: int) -> OuterRounds | None:
        """How it meets the other replicas of the run; None where it is alone."""
        if self.spec.diloco is None:
            return None
        place = ReplicaPlace(self.environ.get("CORRAL_RUN_ID") or self.spec.name, self.replica)
        settings = diloco.parse(self.spec.diloco, self.spec.ranks)
        return OuterRounds(settings, place, engine, self.events, total=total)

    def finish(
        self,
        training: TrainingRun,
        recipe: Callable[[], None],
        forecast: Forecast | None,
        *,
        notes: Sequence[str],
    ) -> None:
        """Resume from a checkpoint if there is one, and run the recipe to its end."""
        smaller = [change for _ in range(memory_retries(self.environ)) if (change := training.take_less())]
        self._resume(training)
        training.join()
        notes = [*notes, *(f"Memory ran out in an earlier attempt: {change}." for change in smaller)]
        short = forecast.notes if forecast and not forecast.fits else ()
        for note in [*notes, *training.engine.notes, *short]:
            if note not in training.record.notes:
                training.note(note)
        setup_s = time.perf_counter() - self.began
        # A GPU's code is compiled when it is first run, which may take longer than many steps.
        self.events.phase("training" if training.engine.device.type == "cpu" else "compiling")
        try:
            training.catch_up()
            recipe()
        except StopRequested:
            training.engine.forget_gradients()
            training.save()
            self.events.say(
                f"stopped after {training.done} of {training.total} steps; a checkpoint was written"
            )
            raise
        finally:
            if training.meter.steps_s:
                inputs.remember_compiled(training.train, training.engine, forecast)
            # After fewer steps nobody knows how much of them was set-up.
            if len(training.meter.steps_s) > 2:
                inputs.remember_pace(forecast, setup_s + training.meter.warming_s())
        # Now, and not when all is written: samples for people are no part of what was forecast.
        memory, total_s = training.meter.memory, time.perf_counter() - self.began
        peak, parts = memory.whole_bytes(), memory.parts()
        self._times = output.RunTimes(setup_s, total_s, peak, parts, self._setup.parts_s)

    def _resume(self, training: TrainingRun) -> None:
        folder = self.places.resume
        if folder is None and self.again:
            folder = next(reversed(checkpoints.found(self.places.checkpoints)), None)
        if folder is None:
            shutil.rmtree(training.best_folder, ignore_errors=True)
            return
        training.resume(training.checkpoints.load(folder))
        training.checkpoints.adopt()
        self.events.say(f"goes on after {training.done} of {training.total} steps")

    def leave(
        self,
        training: TrainingRun,
        forecast: Forecast | None,
        *,
        data: str,
        form: PromptForm,
        samples: Sequence[report.Row] = (),
    ) -> None:
        training.record.sample(samples)
        output.write(training, self.spec, self.places, forecast=forecast, times=self._times, form=form)
        run = self.environ.get("CORRAL_RUN_ID")
        output.write_card(training, self.spec, self.places.output, data=data, run=run)
        # Of several replicas one tells it: they made the same.
        for line in report.summary(training.record, training.headline) if self.replica == 0 else ():
            self.events.say(line)
        if self.places.inputs is None:
            shutil.rmtree(self.places.checkpoints)
            self.events.say(f"the result is in {self.places.output}")


def _scorer(
    environment: RunEnvironment, source: grpo.RolloutSource, keep: Callable[[list[report.Row]], None]
) -> Evaluator:
    """The environment's score of the present weights; `keep` is given what was said."""

    def score(step: int) -> list[Evaluation]:
        found, rows = grpo.score(source.sampling(), environment.eval_tasks, environment.eval_split, step)
        keep(rows)
        return [found]

    return score


def _loss_evaluators(engine: Engine, rows: list[MaskedSequence]) -> list[Evaluator]:
    return [lambda step: [sft.held_out_loss(engine, rows, step)]] if rows else []


def _all(evaluators: Sequence[Evaluator]) -> Evaluator:
    return lambda step: [found for evaluator in evaluators for found in evaluator(step)]


def _left_out(counts: RowCounts) -> list[str]:
    reasons = (
        (counts.refused, "have no certain mask and were left out"),
        (counts.too_long, "are longer than max_length and were left out"),
        (counts.cut, "are longer than max_length and lost their end"),
        (counts.split, "became several samples, since the chat template rewrites earlier turns"),
    )
    return [f"{count} of {counts.rows} rows {what}" for count, what in reasons if count]
