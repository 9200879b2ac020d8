"""The option schema: where values come from, what is refused, and how a refusal reads."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.configuration import OptionError, command_line, let_idle_threads_sleep, load_options
from strata.options import (
    CONFIG_FILE,
    SCHEMA,
    Options,
    allowed_values,
    describe,
    flag_name,
    options_of,
    scope_of,
)


def load(
    command: str = "serve", flags: dict | None = None, cwd: Path = Path("/nonexistent"), **env: str
) -> Options:
    return load_options(command, flags or {}, env, cwd)


def config(folder: Path, text: str) -> Path:
    (folder / CONFIG_FILE).write_text(text, encoding="utf-8")
    return folder


def test_every_option_has_a_scope_and_a_help_text():
    for name in SCHEMA:
        assert scope_of(name), name
        assert describe(name).strip(), name


@pytest.mark.parametrize("name", [name for name in SCHEMA if SCHEMA[name].default not in (None, False)])
def test_a_default_is_an_allowed_value(name):
    default = SCHEMA[name].default
    assert getattr(load(scope_of(name)[0], {name: str(default)}), name) == default


def test_without_anything_given_the_defaults_hold():
    assert load() == Options()


def test_flag_beats_environment_beats_file_beats_default(tmp_path):
    assert load("serve", cwd=tmp_path).api_key is None
    config(tmp_path, 'api-key = "file"\nport = 1234\n')
    assert load("serve", cwd=tmp_path).api_key == "file"
    assert load("serve", cwd=tmp_path, STRATA_API_KEY="env").api_key == "env"
    assert load("serve", {"api_key": "flag"}, tmp_path, STRATA_API_KEY="env").api_key == "flag"
    assert load("serve", {"port": "9"}, tmp_path).port == 9
    assert load("serve", {"port": None}, tmp_path).port == 1234


def test_options_tell_where_their_values_are_from(tmp_path):
    config(tmp_path, "port = 1234\nlanes = 2\n")
    options = load("serve", {"port": "9"}, tmp_path, STRATA_API_KEY="env")
    assert options.origin("port") == "--port"
    assert options.origin("lanes") == str(tmp_path / CONFIG_FILE)
    assert options.origin("api_key") == "STRATA_API_KEY"
    assert options.origin("threads") == "default"
    assert options.model_copy(update={"model": "x"}).origin("port") == "--port"


def test_config_file_may_be_named_by_flag_or_environment(tmp_path):
    other = tmp_path / "other.toml"
    other.write_text("lanes = 7")
    assert load("serve", {"config": str(other)}).lanes == 7
    assert load("serve", STRATA_CONFIG=str(other)).lanes == 7


def test_keys_may_be_written_with_either_dash(tmp_path):
    assert load(cwd=config(tmp_path, "cache-mib = 5")).cache_mib == 5
    assert load(cwd=config(tmp_path, "cache_mib = 6")).cache_mib == 6
    with pytest.raises(OptionError, match=r"strata\.toml:2: 'cache_mib' is given twice"):
        load(cwd=config(tmp_path, "cache-mib = 5\ncache_mib = 6"))


def test_a_file_may_hold_other_commands_options(tmp_path):
    config(tmp_path, 'system = "Be brief."\nlanes = 2\n')
    assert load("chat", cwd=tmp_path).system == "Be brief."
    assert load("serve", cwd=tmp_path).system is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\nprot = 80", r"strata\.toml:2: unknown option 'prot'; did you mean 'port'\?"),
        ("zzzzzz = 1", r"strata\.toml:1: unknown option 'zzzzzz'$"),
        (
            "# port\nhost = 'a'\nport = 70000",
            r"strata\.toml:3: port: 70000 is not allowed: a whole number from 0 to 65535",
        ),
        ("port = '80'", r"strata\.toml:1: port: '80' is not allowed: a whole number"),
        ("port = true", r"strata\.toml:1: port: True is not allowed"),
        ("keep-alive-s = true", r"strata\.toml:1: keep-alive-s: True is not allowed"),
        ("[serve]\nport = 80", r"strata\.toml:1: unknown option 'serve'"),
        ("stay = true", r"strata\.toml:1: 'stay' can only be given as the flag --stay"),
        ("port = = 1", r"strata\.toml: is not a TOML file: .*line 1"),
        ("api-key = ''", r"strata\.toml:1: api-key: the value is not allowed"),
    ],
)
def test_what_is_wrong_in_a_file_is_named_with_its_line(tmp_path, text, message):
    with pytest.raises(OptionError, match=message):
        load(cwd=config(tmp_path, text))


def test_a_whole_number_of_seconds_is_a_number_of_seconds(tmp_path):
    assert load(cwd=config(tmp_path, "keep-alive-s = 10")).keep_alive_s == 10.0


def test_a_named_config_file_must_exist():
    with pytest.raises(OptionError, match=r"/none/strata\.toml: cannot be read: No such file"):
        load("serve", {"config": "/none/strata.toml"})


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"port": "x"}, "--port: 'x' is not allowed"),
        ({"lanes": "0"}, "--lanes: '0' is not allowed: a whole number from 1 to 256 is expected"),
        ({"api_key": ""}, "--api-key: the value is not allowed: a key is empty"),
        ({"api_key": "a,,b"}, "--api-key: the value is not allowed: a key is empty"),
        ({"api_key": "a\nb"}, "--api-key: the value is not allowed: a key holds a character"),
        ({"context": "15"}, "--context: '15' is not allowed: a whole number from 16 up is expected"),
        ({"cors_origins": "a.example"}, "--cors-origins: 'a.example' is not allowed: .*https://a.example"),
    ],
)
def test_a_bad_flag_is_named(flags, message):
    with pytest.raises(OptionError, match=message):
        load("serve", flags)


@pytest.mark.parametrize(
    ("flags", "allowed"),
    [
        *(({"ram": size}, r"1g to 9999g \(GiB\)") for size in ("0g", "0", "-8g", "10000g", "much")),
        *(({"memory_bandwidth": x}, "a number from 1 to 2000") for x in ("nan", "inf", "-1", "0", "x")),
        *(({"cores": n}, "a whole number from 1 to 1024") for n in ("0", "1.5", "nan")),
    ],
)
def test_a_refused_size_or_number_says_what_is_allowed(flags, allowed):
    ((name, value),) = flags.items()
    with pytest.raises(
        OptionError, match=f"^{flag_name(name)}: '{value}' is not allowed: {allowed} is expected$"
    ):
        load("plan", flags)


def test_every_pattern_is_put_into_words():
    patterns = [name for name in SCHEMA if any(hasattr(m, "pattern") for m in SCHEMA[name].metadata)]
    assert "ram" in patterns and all(allowed_values(name) for name in patterns)


def test_a_bad_environment_variable_is_named():
    with pytest.raises(OptionError, match="HF_ENDPOINT: 'somewhere' is not allowed"):
        load("pull", HF_ENDPOINT="somewhere")


def test_an_environment_variable_of_another_command_is_not_looked_at():
    assert load_options("test", {}, {"HF_ENDPOINT": "somewhere"}, Path("/nonexistent")) == Options()


def test_a_required_flag_is_asked_for():
    with pytest.raises(OptionError, match="--out is missing; see `strata logits --help`"):
        load("logits", {"tokens": "t.json"})


def test_a_refused_key_is_not_repeated():
    with pytest.raises(OptionError) as caught:
        load("serve", {"api_key": ["secret"]})
    assert "secret" not in str(caught.value)


@given(
    st.fixed_dictionaries(
        {
            "model": st.text(min_size=1).filter(lambda text: "\0" not in text),
            "port": st.integers(0, 65535),
            "threads": st.none() | st.integers(1, 1024),
            "context": st.none() | st.integers(16, 10**7),
            "keep_alive_s": st.floats(0.05, 3600),
            "attached": st.booleans(),
        }
    )
)
def test_a_child_gets_the_same_options_from_its_command_line(values):
    options = Options(**values)
    line = command_line(options, "serve")
    assert line[:1] == ["--config"]
    flags = {}
    for item in line[2:]:
        name, equals, value = item.partition("=")
        flags[name[2:].replace("-", "_")] = value if equals else True
    assert load("serve", flags) == options


def test_keys_are_a_list_without_the_spaces_around_them(tmp_path):
    assert load("serve", {"api_key": " a, b c "}).api_key == "a,b c"
    assert load(cwd=config(tmp_path, 'api-key = "a , b"')).api_key == "a,b"
    assert load("serve", STRATA_API_KEY_FILE="keys").api_key_file == Path("keys")


def test_the_key_is_not_put_on_a_childs_command_line():
    assert not any("secret" in item for item in command_line(Options(api_key="secret"), "serve"))
    assert flag_name("api_key") not in " ".join(command_line(Options(api_key="secret"), "serve"))


def test_commands_have_the_options_they_need():
    assert {"model", "host", "port", "api_key"} <= set(options_of("serve"))
    assert "port" not in options_of("demo")


@pytest.mark.parametrize(("before", "after"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_idle_threads_sleep_unless_the_person_says_otherwise(monkeypatch, before, after):
    monkeypatch.setenv("OMP_WAIT_POLICY", "")  # restored afterwards, whatever the test does
    monkeypatch.delenv("OMP_WAIT_POLICY")
    if before:
        monkeypatch.setenv("OMP_WAIT_POLICY", before)
    let_idle_threads_sleep()
    assert os.environ["OMP_WAIT_POLICY"] == after
