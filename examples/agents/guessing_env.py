"""An environment of verifiers: the policy guesses a number, and is told "<" (less than that) or ">" (more), until it has found it."""
import verifiers
from datasets import Dataset

NUMBERS = 7


def guesses(state):
    """The numbers that the policy has said; None for an answer that is none, or was cut off."""
    answers = [None if step["is_truncated"] else step["completion"][-1].content for step in state["trajectory"]]
    return [int(answer) if answer in [str(1 + i) for i in range(NUMBERS)] else None for answer in answers]


class GuessingEnv(verifiers.MultiTurnEnv):
    @verifiers.stop
    async def over(self, state):
        return guesses(state)[-1:] in ([None], [int(state["answer"])])

    async def env_response(self, messages, state, **kwargs):
        return [{"role": "user", "content": "<" if int(state["answer"]) < guesses(state)[-1] else ">"}]


async def found(state, answer):
    return float(int(answer) in guesses(state))


async def numbers(state):
    return float(sum(guess is not None for guess in guesses(state)))


async def worth(state, answer):
    """To play by the rules is worth a little."""
    return await found(state, answer) or 0.1 * await numbers(state)


def load_environment(turns: int = 4, rows: int = 700):
    dataset = Dataset.from_list([{"question": "?", "answer": str(1 + row % NUMBERS)} for row in range(rows)])
    rubric = verifiers.Rubric(funcs=[worth, found, numbers], weights=[1, 0, 0])
    return GuessingEnv(dataset=dataset, max_turns=turns, rubric=rubric)
