"""One job from its spec to its output: look, load, run the recipe, leave the result."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from transformers.utils.logging import disable_progress_bar

from corral.engine import tasks
from corral.engine.data import masks
from corral.engine.data.order import Order
from corral.engine.data.packing import PackingError
from corral.engine.data.rows import DataError, RowSet
from corral.engine.engine import Engine
from corral.engine.environments.process import EnvironmentProcess
from corral.engine.environments.transcript import Writer
from corral.engine.environments.values import EnvironmentProblem
from corral.engine.material import Data, flops, load_model, make_engine, markers, plan, read_data
from corral.engine.model.load import Loaded, ModelProblem
from corral.engine.reports import output, report
from corral.engine.reports.events import Events, Screen
from corral.engine.sampling.rollouts import Rollouts
from corral.engine.spec import Places, Refused, Spec, read
from corral.engine.training import checkpoints, grpo, sft
from corral.engine.training.checkpoints import CheckpointError, Checkpoints
from corral.engine.training.course import Course, OutOfMemory
from corral.engine.training.evaluate import Evaluation
from corral.engine.training.meter import Meter, peak_memory_bytes
from corral.engine.training.signals import Stop, Stopped
from corral.engine.training.watch import GuardStop, Limits, Watch
from corral.engine.world import World, look, open_environment
from corral.recipes import models as listed
from corral.recipes.forecast import Forecast
from corral.recipes.train import DataFacts, Train, TrainError, effective_learning_rate, parse, to_table

# What was asked for is wrong; a guard ended it; memory does not suffice. 1 is a fault of the engine.
REFUSED, GUARD, MEMORY = 2, 3, 4
_WRONG = (Refused, TrainError, DataError, PackingError, CheckpointError, ModelProblem, EnvironmentProblem)


def main(
    places: Places,
    environ: Mapping[str, str],
    *,
    again: bool = False,
    debug: bool = False,
    began: float | None = None,
) -> int:
    """Run the job of `places.spec`; gives the exit code. `again`: go on from the newest checkpoint. `began`:
    when the process started, by time.perf_counter."""
    stop = Stop()
    stop.install()
    # Its bars are for terminals; here they would fill the run's log.
    disable_progress_bar()
    events = Events(places.events, Screen())
    try:
        job = Job(read(places.spec), places, environ, events, stop, again=again)
        job.began = job.began if began is None else began
        with events.setting_up():
            job.run()
    except Stopped:
        stop.die()
    except GuardStop as error:
        events.note(f"The run was stopped: {error.finding}")
        return _fail(error, GUARD, debug=debug)
    except (OutOfMemory, torch.OutOfMemoryError) as error:
        return _fail(error, MEMORY, debug=debug)
    except (*_WRONG, listed.UnknownModel) as error:
        return _fail(error, REFUSED, debug=debug)
    return 0


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
class Job:
    """`environ` is where the run's own variables and secrets are, for its environment's code."""

    spec: Spec
    places: Places
    environ: Mapping[str, str]
    events: Events
    stop: Stop
    again: bool = False
    began: float = field(default_factory=time.perf_counter)
    _times: output.Times = field(default_factory=output.Times)

    def run(self) -> None:
        train = parse(self.spec.model, self.spec.table)
        with ExitStack() as until_the_end:
            if self.spec.task == "sample":
                self._sample(train, tasks.ask_of(self.spec))
            elif self.spec.task == "eval":
                self._evaluate(train, tasks.ask_of(self.spec), until_the_end)
            elif train.recipe == "sft":
                self._check_places()
                self._sft(train, until_the_end)
            else:
                self._check_places()
                self._grpo(train, until_the_end)

    def _check_places(self) -> None:
        """Alone, nothing of an earlier run is written over or mixed up with this one."""
        if self.places.inputs is not None:
            return
        if output.has_result(self.places.output):
            raise Refused(
                f"{self.places.output} is not empty", "Name another folder with --output, or remove it."
            )
        if checkpoints.found(self.places.checkpoints) and not self.again:
            raise Refused(
                f"{self.places.checkpoints} holds checkpoints of an earlier run",
                "Go on from them with --resume, name another folder with --checkpoints, or remove them.",
            )

    # -- recipes --------------------------------------------------------------------------------------

    def _sft(self, train: Train, stack: ExitStack) -> None:
        self.events.phase("reading the data")
        data = read_data(train, self.places)
        process = self.environment(train, stack) if train.environment else None
        loaded = self.load(train)
        examples = self.tokens_of(data.train, loaded, train)
        held_out = self.held_out(data, loaded, train)
        order = Order(len(examples), self.spec.seed)
        total = train.steps or order.steps(train.batch_size, train.epochs or 1.0)
        forecast = plan(train, loaded, examples.facts)
        engine = make_engine(train, loaded, self.places, forecast, seed=self.spec.seed)
        longest, digests = max(examples.lengths), {"data": data.digest}
        course = self.course(
            train, engine, total=total, longest=longest, data=examples.facts, digests=digests
        )
        notes = [*data.notes, *_left_out(examples.counts)]
        evaluators = [tasks.loss_of(engine, held_out)] if held_out else []
        if process is not None:
            world = self.look(process, loaded, train)
            setting = self.setting(world, engine, train, rows=len(world.eval_tasks))
            evaluators.append(_scorer(world, setting, lambda rows: course.record.sample(rows)))
            notes += world.notes
        course.evaluate_with = _all(evaluators)
        self.finish(course, lambda: sft.run(course, examples, order), forecast, notes=notes)
        made = tasks.Made(engine, train, self.events, self.stop)
        self.leave(course, forecast, data=data.digest, samples=tasks.before_and_after(made, held_out))

    def _grpo(self, train: Train, stack: ExitStack) -> None:
        process = self.environment(train, stack)
        loaded = self.load(train)
        world = self.look(process, loaded, train)
        forecast = plan(train, loaded, world.facts)
        engine = make_engine(train, loaded, self.places, forecast, seed=self.spec.seed)
        digests = {"environment": process.description.fingerprint}
        course = self.course(
            train, engine, total=train.steps or 1, longest=world.context, data=world.facts, digests=digests
        )
        at_once = train.prompts_per_step * train.grpo.group_size
        rows = min(at_once, (forecast.rows if forecast else 0) or at_once)
        setting = self.setting(world, engine, train, rows=rows)
        course.evaluate_with = _scorer(world, setting, lambda rows: course.record.sample(rows))
        self.finish(course, lambda: grpo.run(course, setting), forecast, notes=list(world.notes))
        self.leave(course, forecast, data=process.description.fingerprint)

    # -- what a run made ------------------------------------------------------------------------------

    def _evaluate(self, train: Train, ask: Mapping[str, Any], stack: ExitStack) -> None:
        if ask["data"] is not None:
            train = replace(train, eval_data=ask["data"], eval_fraction=0.0)
        train = replace(train, eval_rows=ask["rows"] or train.eval_rows)
        process = self.environment(train, stack) if train.environment else None
        data = read_data(train, self.places) if train.recipe == "sft" else None
        loaded = self.load(train)
        held_out = self.held_out(data, loaded, train) if data else []
        if not held_out and process is None:
            raise Refused("the run held nothing out to evaluate on", "Name rows to evaluate on: `--data`.")
        engine = make_engine(train, loaded, self.places, None, seed=self.spec.seed, which=ask["which"])
        made = tasks.Made(engine, train, self.events, self.stop)
        evaluators = [tasks.loss_of(engine, held_out)] if held_out else []
        samples: list[report.Row] = list(tasks.before_and_after(made, held_out))
        if process is not None:
            world = self.look(process, loaded, train)
            setting = self.setting(world, engine, train, rows=min(len(world.eval_tasks), 64))
            evaluators.append(_scorer(world, setting, samples.extend))
        said = tasks.evaluate(made, _all(evaluators) or (lambda _: []), ask)
        self.places.output.mkdir(parents=True, exist_ok=True)
        report.write_json(self.places.output / "metrics.json", said)
        report.write_lines(self.places.output / "samples.jsonl", samples)

    def _sample(self, train: Train, ask: Mapping[str, Any]) -> None:
        loaded = self.load(train)
        engine = make_engine(train, loaded, self.places, None, seed=self.spec.seed, which=ask["which"])
        usual = train.grpo.temperature if train.recipe == "grpo" else ask["temperature"]
        if self.spec.ask.get("temperature") is None:
            ask = {**ask, "temperature": usual}
        rows = tasks.sample(tasks.Made(engine, train, self.events, self.stop), ask)
        self.places.output.mkdir(parents=True, exist_ok=True)
        report.write_lines(self.places.output / "samples.jsonl", rows)

    # -- parts of them --------------------------------------------------------------------------------

    def environment(self, train: Train, stack: ExitStack) -> EnvironmentProcess:
        self.events.phase("opening the environment")
        own = {name: self.environ[name] for name in self.spec.variables if name in self.environ}
        return stack.enter_context(open_environment(train, self.places, own))

    def load(self, train: Train) -> Loaded:
        self.events.phase(f"loading {self.spec.model}")
        with self.stop.interruptible():
            return load_model(train, self.spec, self.places)

    def look(self, process: EnvironmentProcess, loaded: Loaded, train: Train) -> World:
        about = process.description
        writer = Writer(loaded.tokenizer, tools=about.tools, thinking=train.thinking, system=train.system)
        with self.stop.interruptible():
            return look(process, writer, train)

    def tokens_of(self, rows: RowSet, loaded: Loaded, train: Train) -> masks.Examples:
        self.events.phase(f"making tokens of {len(rows)} rows")
        with self.stop.interruptible():
            return masks.examples(rows, loaded.tokenizer, train)

    def held_out(self, data: Data, loaded: Loaded, train: Train) -> list[masks.Sample]:
        if data.held_out is None:
            return []
        found = self.tokens_of(data.held_out, loaded, train)
        return [found[place] for place in range(min(len(found), train.eval_rows))]

    def setting(self, world: World, engine: Engine, train: Train, *, rows: int) -> grpo.Setting:
        def rollouts(rows: int) -> Rollouts:
            return world.rollouts(engine, train, seed=self.spec.seed, rows=rows)

        return grpo.Setting(rollouts, rows, world.tasks, self.spec.seed, markers(train, engine.loaded))

    def course(
        self,
        train: Train,
        engine: Engine,
        *,
        total: int,
        longest: int,
        data: DataFacts,
        digests: Mapping[str, Any],
    ) -> Course:
        facts = engine.loaded.facts
        config = {
            **to_table(train),
            "seed": self.spec.seed,
            "model_digest": engine.loaded.digest,
            "total_steps": total,
            **{f"{name}_digest": value for name, value in digests.items()},
        }
        return Course(
            train=train,
            total=total,
            rate=effective_learning_rate(train, facts),
            engine=engine,
            events=self.events,
            checkpoints=Checkpoints(self.places.checkpoints, config, self.events),
            watch=Watch(Limits.of(train)),
            meter=Meter(*flops(train, facts, data)),
            stop=self.stop,
            work=self.places.checkpoints / "work",
            headline="loss" if train.recipe == "sft" else "reward",
            longest=longest,
        )

    def finish(
        self, course: Course, recipe: Callable[[], None], forecast: Forecast | None, *, notes: Sequence[str]
    ) -> None:
        """Go on from a checkpoint if there is one, and run the recipe to its end."""
        self._resume(course)
        short = forecast.notes if forecast and not forecast.fits else ()
        for note in [*notes, *course.engine.notes, *short]:
            if note not in course.record.notes:
                course.note(note)
        setup_s = time.perf_counter() - self.began
        self.events.phase("training")
        try:
            course.catch_up()
            recipe()
        except Stopped:
            course.engine.forget_gradients()
            course.save()
            self.events.say(f"stopped after {course.done} of {course.total} steps; a checkpoint was written")
            raise
        # Now, and not when all is written: samples for people are no part of what was forecast.
        self._times = output.Times(setup_s, time.perf_counter() - self.began, peak_memory_bytes())

    def _resume(self, course: Course) -> None:
        folder = self.places.resume
        if folder is None and self.again:
            folder = next(reversed(checkpoints.found(self.places.checkpoints)), None)
        if folder is None:
            shutil.rmtree(course.best_folder, ignore_errors=True)
            return
        course.resume(course.checkpoints.load(folder))
        course.checkpoints.adopt()
        self.events.say(f"goes on after {course.done} of {course.total} steps")

    def leave(
        self, course: Course, forecast: Forecast | None, *, data: str, samples: Sequence[report.Row] = ()
    ) -> None:
        course.record.sample(samples)
        output.write(course, self.spec, self.places, forecast=forecast, times=self._times)
        run = self.environ.get("CORRAL_RUN_ID")
        output.write_card(course, self.spec, self.places.output, data=data, run=run)
        for line in report.summary(course.record, course.headline):
            self.events.say(line)
        if self.places.inputs is None:
            shutil.rmtree(self.places.checkpoints)
            self.events.say(f"the result is in {self.places.output}")


def _scorer(
    world: World, setting: grpo.Setting, keep: Callable[[list[report.Row]], None]
) -> Callable[[int], list[Evaluation]]:
    """The environment's score of the present weights; `keep` is given what was said."""

    def score(step: int) -> list[Evaluation]:
        found, rows = grpo.score(setting.sampling(), world.eval_tasks, world.eval_split, step)
        keep(rows)
        return [found]

    return score


def _all(evaluators: Sequence[Callable[[int], list[Evaluation]]]) -> Callable[[int], list[Evaluation]] | None:
    if not evaluators:
        return None
    return lambda step: [found for evaluate in evaluators for found in evaluate(step)]


def _left_out(counts: masks.Counts) -> list[str]:
    said = []
    for count, what in (
        (counts.refused, "have no certain mask and were left out"),
        (counts.too_long, "are longer than max_length and were left out"),
        (counts.cut, "are longer than max_length and lost their end"),
        (counts.split, "became several samples, since the chat template rewrites earlier turns"),
    ):
        if count:
            said.append(f"{count} of {counts.rows} rows {what}")
    return said
