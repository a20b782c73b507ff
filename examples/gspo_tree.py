"""GSPO on trees, all of it on a page: `python examples/gspo_tree.py`, with torch and transformers.

Five executions of an agent, in two groups. Trajectories are prompts with answers; many begin alike. Shared
beginnings are computed once, a sampled token counts once in its execution, clipped are whole executions. The
gradient is that of all trajectories computed alone. gyre's `trainer/` does it with real models at length.

Shapes: N tokens of the tree, T targets (sampled tokens, once per execution), E executions, S tokens of a
trajectory, D hidden, V vocabulary.
"""

import re

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

# (group, reward, trajectories). What the policy sampled is in brackets, the rest is the harness's. Second
# trajectories are a helper that the first one started, an answer that was taken back.
EXECUTIONS = [
    ("sum", 1.0, ["what is 2 + 3 ? [ask the helper] it says 5 [the answer is 5]",
                  "what is 2 + 3 ? [ask the helper] you are the helper [2 and 3 are 5]"]),
    ("sum", 0.0, ["what is 2 + 3 ? [ask the oracle] no such tool [the answer is 6]",
                  "what is 2 + 3 ? [guess]"]),
    ("sum", 0.0, ["what is 2 + 3 ? [that is easy] so ? [the answer is 2]"]),
    ("word", 0.5, ["spell cat [c a t]"]),
    ("word", 0.0, ["spell cat [c a] go on [r]", "spell cat [k a t]"]),
]  # fmt: skip
LOW, HIGH = 0.2, 0.2  # GSPO's paper has 3e-4 and 4e-4, for long answers and small steps
CAP, UPDATES = 2.0, 4  # of importance weights; of a batch
WORDS = sorted({word for _, _, texts in EXECUTIONS for word in re.findall(r"[^\s\[\]]+", " ".join(texts))})


def read(text: str) -> tuple[tuple[int, ...], list[int]]:
    """Ids, and the places of those that were sampled."""
    ids, sampled, inside = [], [], False
    for word in re.findall(r"[\[\]]|[^\s\[\]]+", text):
        if word in "[]":
            inside = word == "["
        else:
            sampled += [len(ids)] if inside else []
            ids.append(WORDS.index(word))
    return tuple(ids), sampled


PATHS = [(e, *read(text)) for e, (_, _, texts) in enumerate(EXECUTIONS) for text in texts]
# A node of the tree is the path to it. Sorted, they are in depth-first order. No node for the last token of a
# trajectory: it is predicted, but predicts nothing.
NODES = sorted({ids[:end] for _, ids, _ in PATHS for end in range(1, len(ids))})
# A target is (execution, path to it). A set: what trajectories of an execution have in common is there once.
TARGETS = sorted({(e, ids[: place + 1]) for e, ids, sampled in PATHS for place in sampled})
EXECUTION_T = torch.tensor([e for e, _ in TARGETS])


def flat_logprobs(model: Qwen3ForCausalLM) -> torch.Tensor:
    """(T,) Each trajectory alone: what they share is computed again and again."""
    found = {}
    for e, ids, sampled in PATHS:
        logp_SV = model(torch.tensor([ids]), use_cache=False).logits[0].log_softmax(-1)
        found |= {(e, ids[: place + 1]): logp_SV[place - 1, ids[place]] for place in sampled}
    return torch.stack([found[target] for target in TARGETS])


def tree_logprobs(model: Qwen3ForCausalLM) -> torch.Tensor:
    """(T,) All in one pass, each token once."""
    # The subtree of node i is i, i + 1, ..., tout[i] - 1. So node q sees k, on its own path, where
    # k <= q < tout[k]. Positions count along the path as well.
    size_N = [sum(other[: len(node)] == node for other in NODES) for node in NODES]
    tout_N = torch.arange(len(NODES)) + torch.tensor(size_N)
    depth_N = torch.tensor([len(node) - 1 for node in NODES])
    k_N, q_N = torch.arange(len(NODES)), torch.arange(len(NODES))[:, None]
    mask_NN = (k_N <= q_N) & (q_N < tout_N)
    how = {"position_ids": depth_N[None], "attention_mask": mask_NN[None, None], "use_cache": False}
    ids_1N = torch.tensor([[node[-1] for node in NODES]])
    hidden_ND = model.model(ids_1N, **how).last_hidden_state[0]
    # A target is read off at its parent. One that has several children predicts the first token of each.
    parent_T = torch.tensor([NODES.index(path[:-1]) for _, path in TARGETS])
    label_T = torch.tensor([path[-1] for _, path in TARGETS])
    return model.lm_head(hidden_ND[parent_T]).log_softmax(-1)[torch.arange(len(TARGETS)), label_T]


def advantages() -> torch.Tensor:
    """(E,) Every execution compared with its group."""
    groups = {name: torch.tensor([r for g, r, _ in EXECUTIONS if g == name]) for name, _, _ in EXECUTIONS}
    return torch.stack([(r - groups[g].mean()) / (groups[g].std() + 1e-4) for g, r, _ in EXECUTIONS])


def gspo(now_T: torch.Tensor, old_T: torch.Tensor, behaviour_T: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Loss, s and who is clipped (E,), from log-probabilities now, at the batch's start, when sampled."""
    size_E = torch.bincount(EXECUTION_T)
    log_ratio_T = (now_T - old_T).detach().double()
    s_E = (torch.bincount(EXECUTION_T, weights=log_ratio_T) / size_E).exp()  # of an execution as a whole
    A_E = advantages()
    clipped_E = ((A_E > 0) & (s_E > 1 + HIGH)) | ((A_E < 0) & (s_E < 1 - LOW))
    bound_E = torch.where(A_E > 0, 1 + HIGH, 1 - LOW)  # what is clipped still counts, without gradient
    ratio_T = torch.where(clipped_E[EXECUTION_T], bound_E[EXECUTION_T], (now_T - old_T).exp())
    weight_T = (old_T - behaviour_T).exp().clamp(max=CAP)  # the engine that sampled is not quite pi_old
    terms_T = ratio_T * weight_T * (A_E / size_E)[EXECUTION_T]
    return -terms_T.sum() / len(EXECUTIONS), s_E, clipped_E


def tiny_model() -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "initializer_range": 0.1}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    return Qwen3ForCausalLM(Qwen3Config(vocab_size=len(WORDS), **sizes, **heads)).eval()


def main() -> None:
    model = tiny_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    with torch.no_grad():
        old_T = tree_logprobs(model)
        behaviour_T = old_T + 0.1 * torch.randn(len(TARGETS))  # as an engine in bf16 would be off
    print(f"{sum(len(ids) for _, ids, _ in PATHS)} tokens, {len(NODES)} in the tree, {len(TARGETS)} targets")
    for update in range(UPDATES):
        gradients = []
        for logprobs in (flat_logprobs, tree_logprobs):
            optimizer.zero_grad()
            loss, s_E, clipped_E = gspo(logprobs(model), old_T, behaviour_T)
            loss.backward()
            gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
        off = (gradients[1] - gradients[0]).norm() / gradients[0].norm()
        assert off < 1e-5, f"the tree's gradient is {off:.1g} off"
        ratios = [f"{s:.3f}{'*' if out else ' '}" for s, out in zip(s_E, clipped_E, strict=True)]
        print(f"update {update + 1}: loss {loss:+.4f}, ratios of executions {' '.join(ratios)} (* clipped)")
        optimizer.step()
    print("the tree's gradients were those of its trajectories")


if __name__ == "__main__":
    main()
