"""What is worth a warning once, at a start."""

from __future__ import annotations

from nvdp.app.starting import warn_at_start
from nvdp.config.options import parse_options
from nvdp.config.process import ProcessOptions
from nvdp.model.reasons import Reason


def test_words_that_nothing_knows_are_told():
    said = []
    options, _ = parse_options({}, {"CDI_DISABLE_HOOKS": "update-ldcash"})
    troubles = warn_at_start(options, lambda reason, text, **fields: said.append((reason, text, fields)))
    assert troubles == ()
    assert [(reason, fields["path"]) for reason, _, fields in said] == [
        (Reason.FEATURE_NOT_BUILT, "--cdi-disable-hooks"),
    ]
    assert "update-ldcash is not known" in said[0][1]


def test_nothing_is_told_where_all_is_well():
    said = []
    assert warn_at_start(ProcessOptions(), lambda *told, **_: said.append(told)) == ()
    assert said == []
