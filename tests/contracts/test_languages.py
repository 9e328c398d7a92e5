"""Chinese is whole: no text lacks a translation, and what is shown has none left in English."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from babel.messages.mofile import read_mo
from click.testing import CliRunner
from tools import messages
from tools.input_keys import input_keys
from validation.translations import Checker

from trainrig import language
from trainrig.cli.main import VERBS, cli
from trainrig.language.catalogue import INPUT_KEYS, PLACE, Catalogue
from trainrig.language.width import width, wrap
from trainrig.report import document as doc

ENTRIES = {
    str(each.id): str(each.string) for each in messages.load("zh_CN") if each.id and each.string
}


@pytest.fixture(autouse=True)
def english() -> Iterator[None]:
    yield
    language.activate(language.ENGLISH)
    click.Context.formatter_class = click.HelpFormatter  # what a command in Chinese left behind


def test_what_is_read_is_what_was_translated() -> None:
    """The .mo in the package is the .po beside it: run tools/messages.py --update."""
    with messages.path_of("zh_CN").with_suffix(".mo").open("rb") as file:
        compiled = {str(each.id): str(each.string) for each in read_mo(file) if each.id}
    assert compiled == ENTRIES


def test_a_translation_has_the_places_of_its_text() -> None:
    for msgid, text in ENTRIES.items():
        assert sorted(PLACE.findall(msgid)) == sorted(PLACE.findall(text)), msgid


# ---- which language


@pytest.mark.parametrize(
    ("word", "tag"),
    [("zh", "zh-CN"), ("zh_CN.UTF-8", "zh-CN"), ("ZH-cn", "zh-CN"), ("en", "en"), ("en-US", "en")],
)
def test_a_language_may_be_spelled_in_several_ways(word: str, tag: str) -> None:
    assert language.parse_language(word) == tag


@pytest.mark.parametrize(
    "words",
    [
        ["--lang", "zh", "report", "--help"],
        ["report", "--lang", "zh", "--help"],
        ["report", "--help", "--lang", "zh"],
        ["report", "--help", "--lang=zh"],
        ["help", "report", "--lang", "zh"],
    ],
)
def test_the_language_is_asked_for_before_the_verb_or_behind_it(words: list[str]) -> None:
    shown = CliRunner().invoke(cli, words, env={"LANG": "C"}).output
    assert "用法" in shown


def test_a_language_without_a_name_is_refused_and_an_error_behind_a_verb_is_translated(
    trainrig,
) -> None:
    code, _, err = trainrig("report", "--lang")
    assert code == 2 and "--lang" in err and "Traceback" not in err
    code, _, err = trainrig("bench", "nothing", "--lang", "zh")
    assert code == 2 and re.search("[\u4e00-\u9fff]", err)


def test_an_unknown_language_is_refused_in_one_line(trainrig) -> None:
    code, out, err = trainrig("--lang", "tlh", "inspect")
    assert (code, out) == (2, "")
    assert err.splitlines()[0] == "trainrig: unknown language 'tlh'" and "zh-CN" in err


@pytest.mark.parametrize(
    ("variables", "tag"),
    [
        ({}, "en"),
        ({"LANG": "zh_CN.UTF-8"}, "zh-CN"),
        ({"LANG": "zh_CN.UTF-8", "LC_ALL": "C"}, "en"),
        ({"LANG": "zh_CN.UTF-8", "LC_MESSAGES": "en_US.UTF-8"}, "en"),
        ({"LANG": "de_DE.UTF-8"}, "en"),
        ({"LANG": "de_DE.UTF-8", "LANGUAGE": "de:zh_CN:en"}, "zh-CN"),
        ({"LANG": "C.UTF-8", "LANGUAGE": "zh_CN"}, "en"),
        ({"LANG": "zh_CN.UTF-8", "LANGUAGE": "en:zh_CN"}, "en"),
    ],
)
def test_the_environment_is_read_as_gettext_reads_it(variables: dict[str, str], tag: str) -> None:
    assert language.environment_language(variables, "utf-8") == tag


def test_a_terminal_without_the_letters_is_spoken_to_in_english() -> None:
    chinese = {"LANG": "zh_CN.UTF-8"}
    assert language.environment_language(chinese, "ascii") == "en"
    assert language.environment_language(chinese, "gbk") == "zh-CN"


# ---- forms

SMALL = Catalogue(
    {
        "{n} of {total} ran": "共 {total} 项，运行了 {n} 项",
        "memory bandwidth": "内存带宽",
        "{what} of {device}": "{device} 的{what}",
        "noisy": "有噪声",
        "{a} reaches {b} of its claim": "{a} 达到标称值的 {b}",
        "{n} errors logged of {what}: {quoted}": "{what} 有 {n} 个错误：{quoted}",
        "no OK of it: cut off": "没有 OK",
        "the system has ended the {rank}{where}": "系统结束了 {rank}{where}",
        "unknown {what}": "未知 {what}",
    }
)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("3 of 5 ran", "共 5 项，运行了 3 项"),
        ("Noisy; 3 of 5 ran", "有噪声；共 5 项，运行了 3 项"),
        ("memory bandwidth of GPU 0", "GPU 0 的内存带宽"),
        ("memory bandwidth reaches 57 % of its claim", "内存带宽达到标称值的 57 %"),
        ("a sentence. that nobody knows of, yet", "a sentence. that nobody knows of, yet"),
        ("161 TFLOPS", "161 TFLOPS"),
        (
            "3 errors logged of GPU 1: memory bandwidth: noisy; 3 of 5 ran",
            "GPU 1 有 3 个错误：memory bandwidth: noisy; 3 of 5 ran",
        ),
        ("GPU 1: memory bandwidth reaches 57 % of its claim", "GPU 1：内存带宽达到标称值的 57 %"),
        ("1 run: no OK of it: cut off: noisy", "1 run：没有 OK：有噪声"),
        ("the system has ended the rank 3 (noisy)", "系统结束了 rank 3（有噪声）"),
        ("unknown 'memory bandwidth of all'", "未知 'memory bandwidth of all'"),
        ("noisy (3 of 5 ran)", "有噪声（共 5 项，运行了 3 项）"),
        (
            "Intel(R) Xeon(R) Processor (3 of 5 ran)",
            "Intel(R) Xeon(R) Processor（共 5 项，运行了 3 项）",
        ),
    ],
)
def test_sentences_are_found_as_forms(text: str, shown: str) -> None:
    assert SMALL.translate(text) == shown


def test_sentences_of_all_forms_are_read_as_their_own_form() -> None:
    """The measurement is python -m validation.translations: 10,000 sentences, at most 0.1 %."""
    checker = Checker(ENTRIES, seed=7)
    sentences = [checker.sentence() for _ in range(150)]
    assert sum(checker.fault(sentence) != "" for sentence in sentences) <= 1


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("no OK in 'a. b; c: d'", "'a. b; c: d' 中没有 OK"),
        ("no OK in AMD Radeon (gfx1100)", "AMD Radeon (gfx1100) 中没有 OK"),
        ("copies of 2 h 10 min", "2 时 10 分的拷贝"),
        ("A sheet of one card, and nobody knows", "A sheet of one card, and nobody knows"),
    ],
)
def test_values_keep_their_quotes_units_and_names(text: str, shown: str) -> None:
    known = Catalogue(
        {
            "no OK in {name}": "{name} 中没有 OK",
            "{what} of {device}": "{device} 的{what}",
            "{hours} h {minutes} min": "{hours} 时 {minutes} 分",
            "copies": "拷贝",
        }
    )
    assert known.translate(text) == shown


def test_lines_are_broken_by_width_and_never_before_a_comma() -> None:
    lines = wrap("训练一步用 12 ms，其中通信占 3 ms；其余是计算。", 12)
    assert max(map(width, lines)) <= 12
    assert all(line[0] not in "，；。" for line in lines)


# ---- how texts are found


def test_a_string_becomes_a_form_for_each_way_that_it_can_read() -> None:
    tree = ast.parse("""say(f"{count(n)} {'ranks' if n else 'GPUs'} of {run.name} failed")""")
    assert [text for _, text in messages.texts_in(tree)] == [
        "{count} ranks of {name} failed",
        "{count} GPUs of {name} failed",
    ]


@pytest.mark.parametrize(
    "code",
    [
        '"A docstring here."',
        're.compile("some words")',
        'x["a key"]',
        'say("--flag")',
        'x.get("A key", y.get("another key"))',
        'write(f"#!/bin/sh\\n{first}echo some words\\nset -eu")',
        """write('echo "some words"; exit "$code"')""",
    ],
)
def test_what_a_program_reads_is_no_text(code: str) -> None:
    assert list(messages.texts_in(ast.parse(code))) == []


def test_what_stands_in_for_a_missing_value_is_a_text() -> None:
    tree = ast.parse('{4: "the sign"}.get(bit, "the rest of it")')
    assert [text for _, text in messages.texts_in(tree)] == ["the sign", "the rest of it"]


def test_a_mistake_in_a_file_is_said_in_chinese_with_its_names_as_they_are() -> None:
    language.activate("zh-CN")
    for text, shown in (
        (
            "x.toml: memory_gib in [memory] is 'a b', not a number",
            "x.toml：[memory] 中的 memory_gib 是 'a b'，不是一个数",
        ),
        ("x.toml: name is missing in [memory]", "x.toml：[memory] 中缺少 name"),
        ("unknown key 'chp' in [gpu 2]", "未知键 [gpu 2] 中的 'chp'"),
    ):
        assert language.translate_message(text) == shown


# ---- what is shown

_ENGLISH = re.compile(r"(?<![\w./:<{=-])[a-z]{3,}(?![\w/=(:]|\.\w)")
"""A word of three small letters or more that is no part of a path, an option or a key."""


def left_in_english(text: str, names: frozenset[str]) -> list[str]:
    """The words of a page that are no names, in its order."""
    return [word for word in _ENGLISH.findall(text) if word not in names]


@pytest.mark.parametrize("verb", ["", *VERBS])
def test_help_is_in_chinese_and_80_columns_wide(verb: str) -> None:
    words = ["--lang", "zh-CN", *verb.split(), "--help"]
    page = CliRunner().invoke(cli, words, terminal_width=80).output
    assert ("用法：" in page and "显示本帮助后退出" in page) or not verb
    typed = re.compile(r"^ *(trainrig |--).*\n( +--.*\n)*", re.MULTILINE)
    assert max(width(line) for line in typed.sub("", page).splitlines()) <= 80


# ---- nothing is left out


def test_no_text_that_is_shown_lacks_a_translation() -> None:
    """`make messages` lists them; a text that stays English has itself as its translation."""
    assert [text for text in messages.messages() if text not in ENTRIES] == []


NAMES = frozenset(
    [
        "megatron",
        "huggingface",
        "deepspeed",
        "torchtitan",
        "native",
        "fsdp",
        "ddp",
        "zero",
        "zero-1",
        "cpu",
        "gpu",
        "pinned",
        "bert",
        "gpt2",
        "llama",
        "medium",
        "large",
        "small",
        "scale",
        "add",
        "hot",
        "cold",
        "flash",
        "host",
        "full",
        "selective",
        "compiled",
        "compile",
        "pure",
        "framework",
        "optimizer",
        "offload",
        "kernels",
        "states",
        "recompute",
        "logits",
        "tokens",
        "token",
        "mixtral",
        "fused",
        "eager",
        "docker",
        "kvm",
        "bookworm",
        "ada",
        "hopper",
        "torch",
        "accelerate",
        "deepspeed",
        "numpy",
        "transformers",
        "tiles",
        "python",
        "trainrig",
        "published",
        "matmul",
        "vector",
        "copy",
        "link",
        "layer",
        "training",
        "runs",
        "with",
        "dense",
        "autocast",
        "trl",
    ]
)
"""Words of options, of libraries, models and chips."""


@pytest.mark.parametrize(
    ("words", "most"),
    [
        (("demo",), 12),
        (("plan", "--model", "gpt2", "--on", "RTX 4090", "--gpus", "2", "--global-batch", "16"), 4),
        (("fits", "--model", "gpt2", "--on", "RTX 4090"), 4),
        (("predict", "--model", "gpt2", "--on", "RTX 4090"), 4),
        (("build", "check", "docs/examples/one-4090.toml"), 32),  # fields of a list's entries
        (
            ("cost", "--buy", "2e5", "--spot-per-hour", "32", "--watts", "700", "--kwh-price", "1"),
            4,
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else None,
)
def test_what_a_verb_shows_is_in_chinese(words: tuple[str, ...], most: int) -> None:
    """At most so many words are left; each is a name that the list above does not have."""
    shown = CliRunner().invoke(cli, ["--lang", "zh", *words], env={"COLUMNS": "200"})
    assert shown.exit_code == 0, shown.output
    commands = re.sub(r"(?:trainrig|trl) [a-z][^，；。：（]*", "", shown.output)
    left = left_in_english(commands, NAMES)
    assert len(left) <= most, left
    assert len(re.findall(r"[\u4e00-\u9fff]", shown.output)) > 60


def test_a_planted_english_sentence_is_seen() -> None:
    assert left_in_english("训练步：the host waits，12 ms", NAMES) == ["the", "waits"]


def test_the_page_of_published_figures_is_in_chinese(tmp_path: Path) -> None:
    for tag in ("en", "zh-CN"):
        words = ["--lang", tag, "published", "RTX 4090", "--html", str(tmp_path / tag)]
        assert CliRunner().invoke(cli, words).exit_code == 0
    page, english = ((tmp_path / tag).read_text("utf-8") for tag in ("zh-CN", "en"))
    assert '<html lang="zh-CN">' in page and '<html lang="en">' in english
    assert not re.search(r"[\u4e00-\u9fff]", english)
    heads = re.findall(r"<h[12]>(.*?)</h|<th scope=\"col\"[^>]*>(.*?)</th>|<label>(.*?)<", page)
    left = [left_in_english(text, NAMES) for text in map("".join, heads)]
    assert len(left) > 15 and not any(left)


def test_arithmetic_is_translated_term_by_term() -> None:
    known = Catalogue({"{cpu} W processor": "处理器 {cpu} W", "{rest} W rest": "其余 {rest} W"})
    assert known.translate("230 W processor + 92 W rest = 322 W") == (
        "处理器 230 W + 其余 92 W = 322 W"
    )
    assert known.translate("a processor + 92 drives = all") == "a processor + 92 drives = all"


def test_json_stays_english() -> None:
    words = ["predict", "--model", "gpt2", "--on", "RTX 4090", "--json"]
    english = CliRunner().invoke(cli, ["--lang", "en", *words]).output
    assert CliRunner().invoke(cli, ["--lang", "zh", *words]).output == english


# ---- names


KEYS = sorted({name for names in input_keys().values() for name in names})


def test_the_list_of_names_is_that_of_what_reads_the_files() -> None:
    """Written by python -m tools.input_keys --write."""
    assert INPUT_KEYS.read_text("utf-8").split() == KEYS


@pytest.mark.parametrize("form", ["{}", "file.toml: {}: Field required", "one of: {}", "of a, {}"])
def test_a_key_in_a_message_stays_as_it_is_typed(form: str) -> None:
    language.activate("zh-CN")
    for key in KEYS:
        assert key in language.translate_message(form.format(key)), key


def test_a_list_of_all_keys_stays_as_it_is() -> None:
    language.activate("zh-CN")
    for names in input_keys().values():
        assert ", ".join(names) in language.translate_message(f"it reads: {', '.join(names)}")


@pytest.mark.parametrize("key", ["chip", "link", "model", "source", "name"])
def test_the_same_word_on_a_page_is_a_word(key: str) -> None:
    language.activate("zh-CN")
    assert re.search(r"[\u4e00-\u9fff]", language.translate(key))


def test_what_is_typed_stands_in_the_translation_as_well() -> None:
    """``key = value``, ``[table]`` and ``--option`` of a text."""
    typed = re.compile(r"(?<![\w.])([a-z][a-z0-9_]*) = |\[\[?([a-z][a-z_]*)\]\]?|(--[a-z][a-z-]+)")
    for msgid, text in ENTRIES.items():
        for names in typed.findall(msgid):
            name = next(filter(None, names))
            assert name not in (*KEYS, name[:2] == "--" and name) or name in text, (msgid, name)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            "GPU 0: Xid 119 (5 in the log, program nvidia-smi): nothing to undo",
            "GPU 0：Xid 119（日志中 5 次，程序 nvidia-smi）：无需撤销",
        ),
        ("23.5 GiB, 22.1 GiB available", "23.5 GiB, 22.1 GiB 可用"),
        ("fp16, 102 % of its claim", "fp16，其标称值的 102 %"),
        ("Matmul, 3 of 19 cases", "矩阵乘，19 例中的 3 例"),
        ("761 GB/s on RTX 5090 (nvbandwidth 0.8).", "RTX 5090 (nvbandwidth 0.8) 上的 761 GB/s。"),
        ("row 0, column 1", "第 0 行，第 1 列"),
        ("QLoRA fits", "QLoRA 放得下"),
        ("needed", "需要"),
        ("airflow, noise", "风道，噪声"),
        ("smallest", "最小"),
        ("1 note", "1 条说明"),
        (
            "python died 13 times of a segmentation fault in libc.so.6",
            "python 因 libc.so.6 中的段错误终止了 13 次",
        ),
        (
            "the kernel killed python because memory was full: Out of memory: Killed process 2",
            "内核因内存耗尽终止了 python：Out of memory: Killed process 2",
        ),
    ],
)
def test_an_amount_beside_another_one_keeps_its_words(text: str, shown: str) -> None:
    assert Catalogue.load("zh-CN").translate(text) == shown


def test_every_driver_error_counts_its_lines_in_chinese() -> None:
    catalogue = Catalogue.load("zh-CN")
    for path in ("xid.toml", "sxid.toml"):
        rows = tomllib.loads((messages.SOURCE / "doctor" / path).read_text(encoding="utf-8"))
        for row in messages._values(rows, ["meaning"]):
            shown = catalogue.translate(f"GPU 0: Xid 7 (5 in the log): {row}")
            assert shown.startswith("GPU 0：Xid 7（日志中 5 次）："), shown


def test_a_command_to_copy_stays() -> None:
    language.activate("zh-CN")
    item = doc.Item(text="noisy", command="trainrig qualify --out 'noisy, memory'")
    shown = doc.translated(doc.Document(title="", blocks=(doc.Findings((item,)),)))
    assert shown.blocks[0].items[0].command == item.command


def test_a_list_of_settings_that_is_longer_than_a_line_is_broken_behind_its_commas() -> None:
    settings = "gpt2:num_layers=2,hidden=128,vocab=8192,max_positions=1024, bf16"
    lines = wrap(settings, 30)
    assert "".join(lines).replace(" ", "") == settings.replace(" ", "")
    assert all(width(line) <= 30 for line in lines)
    assert any("max_positions=1024" in line for line in lines)


def test_names_to_type_stay_beside_quoted_words() -> None:
    language.activate("zh-CN")
    hint = "in a file: [[gpu]] part = 'RTX 4099' with chip, length_mm, slots"
    shown = language.translate_message(f"{hint}; {hint.replace('gpu', 'case')}")
    for written in ("[[gpu]]", "[[case]]", "'RTX 4099'", "chip, length_mm, slots"):
        assert written in shown
