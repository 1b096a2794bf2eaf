"""The contract of an encoding, tried in the model of the paper.

Axes: B batch, L segment, M memory, H heads, d model width, n distances.
"""

import torch
from torch import Tensor

from txlcli.config.model_settings import TransformerSettings
from txlcli.config.traits import ENCODING_TRAITS
from txlcli.core.backend import ScoreTerms
from txlcli.core.model.transformer_xl import TransformerXL
from txlcli.testing.architecture import ArchitectureCheck
from txlcli.testing.samples import B, L, M


class EncodingCheck(ArchitectureCheck):
    """The rules of an encoding."""

    settings: TransformerSettings

    def run(self) -> None:
        """Check all rules, those that concern encodings alone first."""
        self.attempt(self.model, "a model is made with the encoding, whose settings are its only argument")
        self.attempt(self.check_terms, "score_terms(reach, max_distance=..., like=...) returns terms of each layer")
        self.attempt(self.check_rotation, "rotation(positions) returns a rotation of queries and keys, or None")
        self.attempt(self.check_positions, "an encoding adds to hidden states by their positions")
        self.attempt(self.check_backends, "an encoding works on the fast path and by the definition of attention")
        super().run()

    def check_terms(self) -> None:
        """Check the shapes of the score terms, and that near distances depend neither on `reach` nor on a limit."""
        reach = L + M
        far = self.score_terms(reach)
        near = self.score_terms(L)
        rule = "the trait score_terms has (b) with position keys and (d) with a bias, which `txl attention` compares"
        declared = ENCODING_TRAITS[self.name].score_terms
        has_keys = False
        has_bias = False
        for terms in far:
            is_projected = terms.distances is not None  # to both of them
            has_keys |= is_projected or terms.position_key is not None
            has_bias |= is_projected or terms.position_bias is not None or terms.distance_bias is not None
        for term, is_added in (("b", has_keys), ("d", has_bias)):
            found = f"({term}) is added, and not declared" if is_added else f"({term}) is declared, and not added"
            self.require(is_added == (term in declared), rule, found)
        rule = "the term of a distance does not depend on `reach`"
        for own, other in zip(far, near, strict=True):
            self.require_equal_terms(own.position_key, other.position_key, 1, rule)
            self.require_equal_terms(own.distance_bias, other.distance_bias, L, rule)
            if own.distances is not None and other.distances is not None:
                self.require_equal(own.distances[-1:], other.distances[-1:], rule)
        if ENCODING_TRAITS[self.name].limits_distance:
            for max_distance in range(1, reach - 1):
                self.check_limit(far, max_distance)

    def score_terms(self, reach: int, max_distance: int | None = None) -> list[ScoreTerms]:
        """Return the score terms of each layer, whose shapes are right."""
        model = self.model()
        assert isinstance(model, TransformerXL)
        terms = model.score_terms(reach, max_distance=max_distance)
        n_layers = self.settings.n_layers
        n_heads = self.settings.n_heads
        rule = "score_terms returns terms of each layer, whose rows are distances with the farthest first"
        self.require(len(terms) == n_layers, rule, f"{len(terms)} terms, not {n_layers}")
        for added in terms:
            self.require(added.reach == reach, rule, f"reach is {added.reach}, not {reach}")
            if added.position_key is not None:
                shape = tuple(added.position_key.shape)
                rows = shape[1] if len(shape) == 3 else 0
                is_right = rows <= reach and shape == (n_heads, rows, self.settings.d_head)
                self.require(is_right, rule, f"a position key has the shape {shape}")
            if added.distance_bias is not None:
                shape = tuple(added.distance_bias.shape)
                self.require(shape == (n_heads, reach), rule, f"a bias by distance has {shape}")
        return terms

    def require_equal_terms(self, own: Tensor | None, other: Tensor | None, count: int, rule: str) -> None:
        """Raise a ContractError unless two terms (H, n, ...) are equal at the nearest distances."""
        self.require((own is None) == (other is None), rule, "it has no value in one of two cases")
        if own is not None and other is not None:
            self.require_equal(own[:, -count:], other[:, -count:], rule)

    def check_limit(self, unlimited: list[ScoreTerms], max_distance: int) -> None:
        """Check that distances beyond `max_distance` share one term, as `limits_distance` declares."""
        rule = "with limits_distance, distances beyond max_distance share one term, and the others do not change"
        near = max_distance + 1  # distances that are not shared
        for terms, other in zip(self.score_terms(L + M, max_distance), unlimited, strict=True):
            self.require_equal_terms(terms.distance_bias, other.distance_bias, near, rule)
            self.require_equal_terms(terms.position_key, other.position_key, near, rule)
            self.require_equal_terms(_as_one_head(terms.distances), _as_one_head(other.distances), near, rule)
            for limited in (terms.distance_bias, terms.position_key, _as_one_head(terms.distances)):
                if limited is not None:
                    beyond = limited[:, :-near]
                    shared = limited[:, -near:][:, :1]
                    self.require_equal(beyond, shared.expand_as(beyond), rule)

    @torch.no_grad()
    def check_rotation(self) -> None:
        """Check that the scores of rotated queries and keys do not depend on the origin of positions."""
        model = self.model()
        assert isinstance(model, TransformerXL)
        shape = (1, self.settings.n_heads, L, self.settings.d_head)
        queries = torch.randn(shape, dtype=torch.float64)
        keys = torch.randn(shape, dtype=torch.float64)
        positions = torch.arange(L)
        scores = []
        for moved in (positions, positions + L):
            rotation = model.encoding.rotation(moved)
            if rotation is None:
                return
            scores.append(rotation.apply(queries) @ rotation.apply(keys).mT)
        rule = "scores of rotated queries and keys depend on the differences of their positions alone"
        self.require_equal(scores[1], scores[0], rule)

    @torch.no_grad()
    def check_positions(self) -> None:
        """Check that an encoding is declared to have absolute positions if hidden states depend on them."""
        model = self.model()
        assert isinstance(model, TransformerXL)
        hidden = torch.randn(B, L, self.settings.d_model, dtype=torch.float64)
        positions = torch.arange(L)
        found = []
        for moved in (positions, positions + L):
            read = model.encoding.add_to_embedding(hidden.clone(), moved)
            for layer in range(self.settings.n_layers):
                read = model.encoding.add_to_layer_input(read, layer, moved)
            found.append(read)
        is_absolute = not torch.equal(*found)
        declared = ENCODING_TRAITS[self.name].absolute_positions
        rule = "absolute_positions is true of an encoding whose hidden states depend on positions in the segment"
        self.require(is_absolute == declared, rule, f"it is {declared}")

    def check_backends(self) -> None:
        """Check that the fast path computes what the definition of attention computes, with its gradients."""
        rule = "the fast path equals the definition of attention"
        expected = self.objective_and_gradients(self.model().on(attention="reference"))
        given = self.objective_and_gradients(self.model())
        for own, other in zip(given, expected, strict=True):
            self.require_equal(own, other, rule)


def _as_one_head(distances: Tensor | None) -> Tensor | None:
    """Return encodings of distances (m, d) with an axis of one head, (1, m, d)."""
    return None if distances is None else distances[None]
