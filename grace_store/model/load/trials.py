"""Does a model, as loaded, see images, and each sample only its own, padded or packed? Asked before any work."""

import torch
from torch import Tensor

from grace_store.base.errors import ModelError, SettingError
from grace_store.base.states import Reason
from grace_store.data.sample import Sample
from grace_store.model.devices import in_words, telling
from grace_store.model.load.probes import probe
from grace_store.model.proxy import ProxyExtractor


@telling("This model cannot be run on a trial with images; --text-only leaves them out")
def check_sees_images(extractor: ProxyExtractor) -> None:
    """Raise unless hidden states of a batch of differing images are those of each sample alone, and images count."""
    one, other, two = probe(("red", 64, 48)), probe(("white", 64, 48)), probe(("blue", 40, 90), ("green", 72, 50))
    verdict = extractor.prepare([one]).set_aside.get(0)
    if verdict is not None and verdict.reason == Reason.TOO_LONG:
        return  # --max-length leaves next to no room for images
    if verdict is not None:
        raise ModelError(f"This model cannot be asked about an image: {verdict.reason}, {verdict.detail}.")
    if torch.equal(_hidden(extractor, [one]), _hidden(extractor, [other])):
        raise ModelError("This model does not see the images it is given. --text-only leaves them out.")
    probes = [each for each in (one, two, probe()) if not extractor.prepare([each]).set_aside]
    together = _hidden(extractor, probes)
    alone = torch.cat([_hidden(extractor, [each]) for each in probes])
    if bool(torch.isfinite(alone).all()) and not _is_close(together, alone):
        raise ModelError(
            "This model gives a sample with images other hidden states in a batch than alone, so its vectors would "
            "depend on their batch-mates. It cannot be used with images; --text-only leaves them out."
        )


def check_packing(packed: ProxyExtractor, padded: ProxyExtractor, *, with_images: bool) -> None:
    """Raise unless hidden states of samples that lie end to end are those of padded ones."""
    pictures = [probe(("red", 64, 48)), probe(("blue", 40, 90), ("green", 72, 50))] if with_images else []
    texts = [probe(), probe(text="Tom has 3 apples and buys 4 more. How many are that?"), probe(text="And now?")]
    probes = [each for each in (*texts, *pictures, texts[0]) if not padded.prepare([each]).set_aside]
    with telling("This model cannot be run on a few words"):
        expected = _hidden(padded, probes)
    try:
        found = _hidden(packed, probes)
    except Exception as error:
        raise SettingError(f"This model takes no packed batches ({in_words(error)}). Leave --packing out.") from error
    if not _is_close(found, expected):
        raise SettingError("This model lets packed samples see each other. Leave --packing out.")


def _is_close(found: Tensor, expected: Tensor) -> bool:
    tolerance = 1e-3 if expected.dtype == torch.float32 else 5e-2
    return bool((found.float() - expected.float()).norm() <= tolerance * expected.float().norm())


def _hidden(extractor: ProxyExtractor, probes: list[Sample]) -> Tensor:
    """Return the hidden states that predict the response tokens of all probes, in their order."""
    prepared = extractor.prepare(probes)
    found: dict[int, Tensor] = {}
    for batch in prepared.batches:
        found.update(extractor.states_by_member(batch, prepared))
    return torch.cat([found[member] for member in sorted(found)])
