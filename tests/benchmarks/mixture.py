"""A mixture of softmaxes (Yang et al. 2018): each of K has its own state, and each position chooses their shares."""

from dataclasses import dataclass

import torch
from torch import nn

from txlcli.config.model_settings import TransformerSettings
from txlcli.core.architectures import register_architecture
from txlcli.core.architectures.transformer import TransformerProducts
from txlcli.core.model.softmax import AdaptiveSoftmax
from txlcli.core.model.transformer_xl import TransformerXL
from txlcli.testing import check_architecture


@dataclass(frozen=True, kw_only=True)
class MixtureSettings(TransformerSettings):
    """[model] with arch = "mixture"."""

    softmaxes: int = 3
    """Number of softmaxes K."""


class MixtureSoftmax(AdaptiveSoftmax):
    def __init__(self, bands, settings, embedding):
        super().__init__(bands, settings.d_model, tied=settings.tie_embeddings, embedding=embedding)
        self.count = settings.softmaxes
        self.shares = nn.Linear(settings.d_model, self.count, bias=False)
        self.states = nn.Linear(settings.d_model, self.count * settings.d_model, bias=False)

    def mixed(self, hidden, log_probs_of):  # (T, d), a function of states (T, d) -> (T, n)
        log_shares = self.shares(hidden).log_softmax(-1)  # (T, K)
        states = self.states(hidden).tanh().chunk(self.count, dim=-1)
        weighted = []
        for number, state in enumerate(states):
            weighted.append(log_shares[:, number, None] + log_probs_of(state))
        return torch.stack(weighted).logsumexp(0)

    def log_probs(self, hidden):  # (T, d) -> (T, V)
        return self.mixed(hidden, super().log_probs)

    def likeliest(self, hidden, count):  # (1, d) -> (count,), (count,)
        return self.log_probs(hidden)[0].topk(count)

    def losses(self, hidden, targets, tail_rows=None):  # (T, d), (T,) -> (T,)
        losses_of_one = super().losses

        def log_probs_of_targets(states):
            return -losses_of_one(states, targets, tail_rows)[:, None]

        return -self.mixed(hidden, log_probs_of_targets)[:, 0]

    def mean_loss(self, hidden, targets, tail_rows=None, weights=None):  # (B, L, d), (B, L) -> 0-d
        losses = self.losses(hidden.flatten(0, 1), targets.flatten(), tail_rows).view(targets.shape)
        if weights is None:
            return losses.mean()
        return (losses * weights).mean() / weights.mean()


class MixtureModel(TransformerXL):
    def make_softmax(self, bands):
        return MixtureSoftmax(bands, self.settings, self.embedding)


class MixtureProducts(TransformerProducts):
    def softmax(self, plain):
        own = self.matrices("softmax.shares") + self.matrices("softmax.states")
        return self.model.softmaxes * plain + own


register_architecture(
    "mixture",
    settings=MixtureSettings,
    model=MixtureModel,
    products=MixtureProducts,
    reader="keys",
)

if __name__ == "__main__":
    check_architecture("mixture")
    print("mixture keeps the contract of architectures")
