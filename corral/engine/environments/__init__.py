"""Environments: the tasks that a model is trained on by reward, written by users as plain Python.

A file with a function is enough; nothing has to be imported:

    def load_environment(count: int = 100):
        return {"rows": [{"prompt": f"{n}+1=", "answer": str(n + 1)} for n in range(count)], "reward": reward}

    def reward(completion, answer):
        return completion.strip() == answer

`corral.engine.environments.native` says what else an environment can have: turns, tools, named rewards with
weights, rewards of a whole group, held-out rows, deadlines. Environments written for Freesolo Flash, for
verifiers before 1.0, and TRL's reward functions are taken as they are. The code runs in processes of its own;
see `corral.engine.environments.process`.
"""
