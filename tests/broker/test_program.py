"""`streamlog broker` as people run it: start, stop, refusals, and where its settings come from."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from broker.asking import ask
from broker.processes import SECONDS, broker_process
from confluent_kafka.admin import AdminClient
from integration.program import Wrong, all_refused, environment, refused, run, topic_with

import streamlog
from streamlog.broker.options import load_settings
from streamlog.broker.settings import BrokerSettings
from streamlog.errors import InvalidRequestError

pytestmark = pytest.mark.processes


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    with streamlog.connect(root) as log:
        log.create_topic("t", partitions=3)
    return root


def beats(root: Path) -> list[dict[str, object]]:
    return [json.loads(path.read_bytes()) for path in sorted((root / "__brokers/live").iterdir())]


def test_it_serves_clients_and_leaves_when_told(root: Path) -> None:
    with broker_process(root, "--log-format", "json") as broker:
        found = AdminClient({"bootstrap.servers": broker.address}).list_topics(timeout=SECONDS)
        assert set(found.topics) == {"t"}
        assert {node: (b.host, b.port) for node, b in found.brokers.items()} == {
            broker.node: ("127.0.0.1", broker.port)
        }
        assert [beat["node"] for beat in beats(root)] == [broker.node]
        assert broker.stop() == 0
        events = [json.loads(line) for line in broker.logs().splitlines()]
    assert {"time", "level", "logger", "message"} <= set(events[0])
    assert "SIGTERM: draining" in [event["message"] for event in events]
    assert beats(root) == []
    views = sorted((root / "__brokers/epochs").iterdir())
    assert [len(json.loads(view.read_bytes())["members"]) for view in views] == [1, 0]


def test_ctrl_c_drains_and_a_second_signal_ends_it_at_once(root: Path) -> None:
    with broker_process(root) as broker:
        broker.signal(signal.SIGINT)
        assert broker.process.wait(SECONDS) == 0
        assert "SIGINT: draining" in broker.logs()
    with broker_process(root) as broker:
        # Both come before it runs again, so that draining cannot end in between.
        for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGINT, signal.SIGCONT):
            broker.signal(number)
        assert broker.process.wait(SECONDS) in (128 + signal.SIGINT, 128 + signal.SIGTERM)
        assert "ending at once" in broker.logs()


def test_the_command_line_outdoes_the_environment_which_outdoes_the_file(
    root: Path, tmp_path: Path
) -> None:
    file = tmp_path / "broker.toml"
    file.write_text('listen = "127.0.0.1:1"\nrack = "file"\nadvertise = "127.0.0.1:7"\n')
    with broker_process(
        root,
        *("--config", str(file), "-X", "node_id=40"),
        variables={"STREAMLOG_BROKER_RACK": "environment", "STREAMLOG_BROKER_NODE_ID": "39"},
    ) as broker:
        assert broker.node == 40
        assert ask(broker.address, "t").brokers == {40: ("127.0.0.1", 7, "environment")}


def test_what_is_wrong_is_said_and_what_to_do(root: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.toml"
    broken.write_text("rack = ")
    unknown = tmp_path / "unknown.toml"
    unknown.write_text("num_partition = 3")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        all_refused(
            root,
            [
                Wrong(f"broker --listen 127.0.0.1:{port}", 1, "another program listens there"),
                Wrong(
                    f"broker --listen 127.0.0.1:0 --http 127.0.0.1:{port}",
                    1,
                    "--http 127.0.0.1:0 takes a free one",
                ),
                Wrong("broker --listen 203.0.113.1:0", 2, "or say insecure"),
                Wrong("broker --listen 9092", 2, "is no address; give HOST:PORT"),
                Wrong("broker --listen ::1:9092", 2, "put an IPv6 address into brackets"),
                Wrong("broker -X num_partition=3", 2, "did you mean num_partitions?"),
                Wrong("broker -X num_partitions=some", 2, "give a whole number"),
                Wrong(f"broker --config {broken}", 2, "is not valid TOML"),
                Wrong(f"broker --config {unknown}", 2, "did you mean num_partitions?"),
                Wrong(f"broker --config {tmp_path / 'absent'}", 2, "No such file"),
                Wrong("broker --http 0.0.0.0:0", 2, "http_insecure=true"),
                Wrong("broker --log-format xml", 2, "give plain or json"),
                Wrong("broker --log-level loud", 2, "give one of debug"),
            ],
        )
    assert "there is no log at" in refused(tmp_path / "absent", "broker")
    # It is warned of the address first.
    elsewhere = run(root, "broker", "--listen", "203.0.113.1:0", "--insecure")
    assert elsewhere.code == 1
    assert "Give --listen an address of this machine" in elsewhere.err


def test_it_says_what_to_install(root: Path) -> None:
    code = (
        "import importlib.util as u, sys; real = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'kio' else real(name, *a)\n"
        "from streamlog.cli.app import run; sys.exit(run(['broker']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(root),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 1
    assert "pip install 'streamlog[broker]'" in done.stderr


def test_a_root_may_stand_after_the_command(tmp_path: Path) -> None:
    topic_with(tmp_path / "root", "t")
    with broker_process(tmp_path / "elsewhere", "--root", str(tmp_path / "root")) as broker:
        assert ask(broker.address, "t").leaders == (broker.node,)


# settings without a process


def test_every_kind_of_value_is_read_from_every_place(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text("auto_create_topics = false\nidle_seconds = 5\nnum_partitions = 7\nrack = 'a'")
    assert load_settings(file, {}, {}).num_partitions == 7
    settings = load_settings(
        file,
        {"STREAMLOG_BROKER_AUTO_CREATE_TOPICS": "yes", "STREAMLOG_BROKER_IDLE_SECONDS": "2.5"},
        {"num.partitions": "1_000", "http": "localhost:0"},
    )
    assert settings.auto_create_topics is True
    assert settings.idle_seconds == 2.5
    assert settings.num_partitions == 1000
    assert settings.rack == "a"
    assert (settings.http_host, settings.http_port) == ("localhost", 0)
    assert load_settings(None, {"STREAMLOG_BROKER_NODE_ID": ""}, {}).node_id is None
    assert load_settings(None, {"STREAMLOG_ROOT": "x", "OTHER": "y"}, {}) == BrokerSettings()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"auto_create_topics": "perhaps"}, "give true or false"),
        ({"num_partitions": "1.5"}, "give a whole number"),
        ({"num_partitions": True}, "give a whole number"),
        ({"idle_seconds": "long"}, "give a number"),
        ({"rack": True}, "give text"),
        ({"listen": "localhost:65536"}, "a port up to 65535"),
        ({"listen": ":9092"}, "give HOST:PORT"),
        ({"advertise": "localhost:0"}, "advertised_port 0 is not valid"),
        ({"zzz": "1"}, "there are advertise"),
        ({"node_id": "0"}, "node_id 0 is not valid"),
        ({"heartbeat_seconds": "0"}, "give more than 0"),
        ({"missed_heartbeats": "1"}, "give at least 2"),
        ({"drain_seconds": "-1"}, "give 0 or more"),
        ({"http_port": "70000"}, "http_port 70000 is not valid"),
    ],
)
def test_a_wrong_value_is_refused(flags: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        load_settings(None, {}, flags)
