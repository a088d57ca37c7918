"""A real server: LibreTranslate's own client, clients that behave badly, and models that change under load."""

import json
import re
import shutil
import signal
import socket
import threading
import time
import urllib.error

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from libretranslatepy import LibreTranslateAPI
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance

from tests.integration.conftest import wait_until
from tests.serving import SENTENCES, make_models, replace_model, running

TEXT = f"  {SENTENCES[0]} {SENTENCES[1]}\n\n\t{SENTENCES[2]}  \n"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return make_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def server(models):
    """Two models; lives through everything that these tests do to it, and then ends as it should."""
    with running(str(models["en-de"]), str(models["de-en"]), "--client-timeout", "3") as server:
        yield server
        code, said = server.stop()
        assert code == 0
        assert "Traceback" not in said
        for secret in (SENTENCES[0], "nothing of this is logged"):
            assert secret not in said
        lines = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
        assert not [line for line in lines if line["status"] >= 500]
        assert any(line["path"] == "/translate" and line["sentences"] == 3 for line in lines)


def test_libretranslates_own_client(server):
    client = LibreTranslateAPI(server.address)
    assert client.languages() == [
        {"code": "en", "name": "English", "targets": ["de"]},
        {"code": "de", "name": "German", "targets": ["en"]},
    ]
    assert client.detect("Where have you put the red book?")[0]["language"] == "en"
    whole = client.translate(TEXT, "en", "de")
    single = [client.translate(sentence, "en", "de") for sentence in SENTENCES[:3]]
    assert whole == f"  {single[0]} {single[1]}\n\n\t{single[2]}  \n"
    assert client.translate(SENTENCES[0], "de", "en") != single[0]


def test_the_shapes_of_answers(server):
    status, one, _ = server.translate(SENTENCES[0])
    assert (status, set(one)) == (200, {"translatedText"})
    _, many, _ = server.translate([SENTENCES[0], "", "---"], source="auto", alternatives=1)
    assert many["translatedText"] == [one["translatedText"], "", "---"]
    assert [set(each) for each in many["detectedLanguage"]] == [{"confidence", "language"}] * 3
    assert len(many["alternatives"][0]) == 1
    assert one["translatedText"] not in many["alternatives"][0]
    _, rich, _ = server.translate(TEXT, sentences=True)
    assert "".join(each["source"] + each["space"] for each in rich["sentences"]) == TEXT
    assert (
        "".join(each["translation"] + each["space"] for each in rich["sentences"]) == rich["translatedText"]
    )
    for each in rich["sentences"][1:]:
        assert 0 < each["confidence"] < 1
        assert each["calibrated"]
    _, back, _ = server.translate("ein Haus", source="de", target="en", sentences=True)
    assert not back["sentences"][0]["calibrated"]
    assert server.ask("/health")[1] == {"status": "ok"}
    assert server.ask("/frontend/settings")[1]["charLimit"] == 20_000
    assert server.ask("/spec")[1] == server.ask("/openapi.json")[1]
    assert "POST /translate" in server.ask("/docs")[1]


def test_html_keeps_its_tags(server):
    html = '<p id="a">The cat <b>sees</b> &amp; buys</p><script>let a = "cat"</script>'
    _, value, _ = server.translate(html, format="html")
    assert re.findall(r"<[^>]+>", value["translatedText"]) == re.findall(r"<[^>]+>", html)
    assert 'let a = "cat"' in value["translatedText"]


def send_file(server, name, content, boundary="XX", **fields):
    """Send a file; return the answer as ``ask`` does."""
    parts = [
        f'--{boundary}\r\nContent-Disposition: form-data; name="{field}"\r\n\r\n{value}\r\n'
        for field, value in {"source": "en", "target": "de", **fields}.items()
    ]
    head = f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'
    body = "".join(parts).encode() + head.encode() + content + f"\r\n--{boundary}--\r\n".encode()
    return server.ask("/translate_file", body, {"Content-Type": f"multipart/form-data; boundary={boundary}"})


def test_files_are_translated_and_fetched(server):
    status, value, _ = send_file(server, "../my text.txt", TEXT.encode())
    assert (status, set(value)) == (200, {"translatedFileUrl"})
    address = value["translatedFileUrl"]
    assert address.startswith(f"{server.address}/download_file/")
    assert address.endswith(".my_text_de.txt")
    path = address.removeprefix(server.address)
    status, text, headers = server.ask(path)
    assert (status, text) == (200, server.translate(TEXT)[1]["translatedText"])
    assert headers["Content-Disposition"] == "attachment; filename*=UTF-8''my_text_de.txt"
    html = f"<p>{SENTENCES[0]} <b>{SENTENCES[1]}</b></p>"
    _, value, _ = send_file(server, "page.HTML", b"\xef\xbb\xbf" + html.encode(), source="auto")
    _, text, headers = server.ask(value["translatedFileUrl"].removeprefix(server.address))
    assert text == server.translate(html, format="html")[1]["translatedText"]
    assert headers.get_content_type() == "text/html"
    assert headers["Content-Security-Policy"].startswith("sandbox")
    settings_ = server.ask("/frontend/settings")[1]
    assert (settings_["filesTranslation"], settings_["supportedFilesFormat"]) == (
        True,
        [".txt", ".html", ".htm"],
    )


def test_files_that_are_refused(server):
    assert send_file(server, "a.pdf", b"x")[0] == 400
    assert send_file(server, "a.txt", b"\xff")[1] == {
        "error": "Invalid request: the file is not UTF-8 (byte 0)"
    }
    assert send_file(server, "a.txt", b"x" * 30_000)[1]["error"].endswith("exceeds text limit (20000)")
    assert send_file(server, "a.txt", b"x" * 1_000_000)[0] == 413
    assert send_file(server, "a.txt", b"a", target="xx")[1] == {"error": "xx is not supported"}
    assert server.ask("/translate_file", {"file": "a", "source": "en", "target": "de"})[0] == 400
    for path in ("/download_file/x.txt", "/download_file/..%2f..%2fetc%2fpasswd", "/download_file/"):
        assert server.ask(path)[0] == 404


def test_a_form_with_parts_is_a_form_too(server):
    body = b'--XX\r\nContent-Disposition: form-data; name="q"\r\n\r\nThe cat.\r\n--XX--\r\n'
    kind = {"Content-Type": "multipart/form-data; boundary=XX"}
    status, value, _ = server.ask("/translate?source=en&target=de", body, kind)
    assert (status, value) == server.translate("The cat.")[:2]


JSON, FORM = "application/json", "application/x-www-form-urlencoded"
GOOD = b'"source": "en", "target": "de"'


@pytest.mark.parametrize(
    ("body", "kind", "status", "text"),
    [
        (b"", JSON, 400, "the body is not JSON"),
        (b"{", JSON, 400, "the body is not JSON"),
        (b"[]", JSON, 400, "the body is not a JSON object"),
        (b'{"q": NaN, ' + GOOD + b"}", JSON, 400, "the body is not JSON"),
        (b'{"q": "\xff", ' + GOOD + b"}", JSON, 400, "the body is not JSON"),
        (b'{"q": "\\ud800", ' + GOOD + b"}", JSON, 400, "the body is not JSON"),
        (b'{"q": ' + b"[" * 100_000, JSON, 400, "the body is not JSON"),
        (b'{"q": 1, ' + GOOD + b"}", JSON, 400, "Invalid request: q: "),
        (b'{"q": [1], ' + GOOD + b"}", JSON, 400, "Invalid request: q: "),
        (b'{"q": "", ' + GOOD + b"}", JSON, 400, "missing q parameter"),
        (b'{"q": [], ' + GOOD + b"}", JSON, 400, "missing q parameter"),
        (b"{" + GOOD + b"}", JSON, 400, "missing q parameter"),
        (b'{"q": "a", "target": "de"}', JSON, 400, "missing source parameter"),
        (b'{"q": "a", "source": "en", "target": "xx"}', JSON, 400, "xx is not supported"),
        (b'{"q": "a", "source": "auto", "target": "xx"}', JSON, 400, "xx is not supported"),
        (b'{"q": "a", "source": "en", "target": "en"}', JSON, 400, "not available as a target language"),
        (b'{"q": "a", "format": "pdf", ' + GOOD + b"}", JSON, 400, "Invalid request: format: "),
        (b'{"q": "a", "alternatives": -1, ' + GOOD + b"}", JSON, 400, "Invalid request: alternatives: "),
        (b'{"q": "a", "alternatives": 1e99, ' + GOOD + b"}", JSON, 400, "Invalid request: alternatives: "),
        (b'{"q": "a", "alternatives": 99, ' + GOOD + b"}", JSON, 400, "must be <= 10"),
        (b'{"q": "' + b"x" * 100_000 + b'", ' + GOOD + b"}", JSON, 400, "exceeds text limit (20000)"),
        (b'{"q": "' + b"a\\n" * 5000 + b'", ' + GOOD + b"}", JSON, 400, "5000 sentences exceed the limit"),
        (b'{"q": "' + b"x" * 1_000_000 + b'", ' + GOOD + b"}", JSON, 413, "the body is larger than"),
        (b"q=%ff&source=en&target=de", FORM, 400, "the form cannot be read"),
        (b"\xff\xfe", FORM, 400, "the form cannot be read"),
        (b"&".join([b"a=b"] * 1000), FORM, 400, "the form cannot be read"),
        (b"hello", "text/plain", 415, "send JSON or a form"),
    ],
    ids=range(27),
)
def test_what_is_no_request_is_refused_and_says_why(server, body, kind, status, text):
    found, value, _ = server.ask("/translate", body, {"Content-Type": kind})
    assert (found, set(value)) == (status, {"error"})
    assert text in value["error"]


@pytest.mark.parametrize(
    "text", ["x" * 19_999, "\x00\x01\x1b[31m\x7f\u202e", "\ufffd\ufeff😀" * 50, " \n" * 500, "<2de> </s> ▁"]
)
def test_strange_texts_are_translated(server, text):
    status, value, _ = server.translate(text)
    assert (status, isinstance(value["translatedText"], str)) == (200, True)


def talk(server, *chunks, wait=15.0):
    """Send bytes as they are and return everything that comes back until the end."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=wait) as connection:
        for chunk in chunks:
            connection.sendall(chunk)
        received = b""
        while chunk := connection.recv(65536):
            received += chunk
    return received


def test_a_body_without_end_is_cut_off(server):
    head = b"POST /translate HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunk = b"%x\r\n%b\r\n" % (65536, b"x" * 65536)
    assert b" 413 " in talk(server, head, *[chunk] * 8).splitlines()[0]


def test_heads_that_are_no_heads(server):
    assert b" 400 " in talk(server, b"\x16\x03\x01 nonsense\r\n\r\n").splitlines()[0]
    endless = [b"GET / HTTP/1.1\r\n", *[b"X-A: " + b"a" * 8000 + b"\r\n"] * 6]
    assert b" 431 " in talk(server, *endless).splitlines()[0]


def test_slow_clients_are_sent_away_and_hold_up_nobody(server):
    begun = [socket.create_connection(("127.0.0.1", server.port), timeout=30) for _ in range(50)]
    for connection in begun:
        connection.sendall(b"POST /translate HTTP/1.1\r\nHost: local")
    began = time.monotonic()
    assert server.translate(SENTENCES[0])[0] == 200
    assert time.monotonic() - began < 3  # before any of them was given up
    assert b" 408 " in begun[0].recv(1000).splitlines()[0]
    assert begun[0].recv(1000) == b""
    for connection in begun:
        connection.close()


def test_a_client_that_leaves_is_forgotten(server):
    body = json.dumps({"q": " ".join(SENTENCES * 10), "source": "en", "target": "de"}).encode()
    head = b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(head % (JSON.encode(), len(body)) + body)
    deadline = time.monotonic() + 30
    while "dragoman_queued_characters 0.0" not in server.ask("/metrics")[1]:
        assert time.monotonic() < deadline
    assert server.ask("/health")[0] == 200


def test_other_machines_names_and_pages_are_refused(server):
    assert server.ask("/health", headers={"Host": "evil.example"})[0] == 403
    status, value, _ = server.ask("/translate", {"q": "a"}, {"Sec-Fetch-Site": "cross-site"})
    assert (status, value) == (403, {"error": "this server answers to this machine only (see --open)"})


def test_paths_and_methods_that_do_not_exist(server):
    assert server.ask("/none")[:2] == (404, {"error": "Not Found"})
    status, value, headers = server.ask("/translate")
    assert (status, value, headers["Allow"]) == (405, {"error": "Method Not Allowed"}, "POST")


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
def test_the_description_is_kept(server, mode):
    """Requests that Schemathesis makes up from the OpenAPI description, good ones and bad ones."""
    schema = schemathesis.openapi.from_url(f"{server.address}/openapi.json")
    operations = [result.ok() for result in schema.get_all_operations()]
    assert {operation.path for operation in operations} >= {"/translate", "/detect", "/languages", "/health"}
    for operation in operations:
        if mode == GenerationMode.NEGATIVE and not operation.body:
            continue

        @given(case=operation.as_strategy(generation_mode=mode))
        @settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
        def check(case):
            # The description does not say that "3" counts as a number, as for LibreTranslate, nor which languages
            # there are.
            case.call_and_validate(
                timeout=30, excluded_checks=[negative_data_rejection, positive_data_acceptance]
            )

        check()


def test_keys_rates_and_an_access_log(models, tmp_path):
    (tmp_path / "keys").write_text("0123456789abcdef anna\n")
    log = tmp_path / "access.jsonl"
    with running(
        str(models["en-de"]),
        "--host",
        "0.0.0.0",
        "--keys",
        str(tmp_path / "keys"),
        "--rate",
        "5",
        "--log",
        str(log),
    ) as server:
        server.address = server.address.replace("0.0.0.0", "127.0.0.1")
        assert server.ask("/health", headers={"Host": "any.example"})[0] == 200
        refused = server.translate("a")
        assert refused[:2] == (
            400,  # as LibreTranslate does
            {"error": "An API key is required: get one from whoever runs this server"},
        )
        assert server.translate("a", api_key="wrong")[:2] == (403, {"error": "Invalid API key"})
        assert server.ask("/metrics")[0] == 400
        assert send_file(server, "a.txt", b"a")[0] == 400
        assert send_file(server, "a.txt", b"a", api_key="wrong")[0] == 403
        assert server.translate("nothing of this is logged", api_key="0123456789abcdef")[0] == 200
        bearer = {"Authorization": "Bearer 0123456789abcdef"}
        assert server.ask("/translate", {"q": "a", "source": "en", "target": "de"}, bearer)[0] == 200
        assert LibreTranslateAPI(server.address, "0123456789abcdef").translate("a", "en", "de")
        assert "dragoman_sentences_total 3.0" in server.ask("/metrics", headers=bearer)[1]
        answers = [server.translate("a", api_key="0123456789abcdef") for _ in range(4)]
        status, value, headers = answers[-1]
        assert (status, value) == (429, {"error": "Slowdown: 5 requests per minute"})
        assert 1 <= int(headers["Retry-After"]) <= 13
        # The keys of a changed file count from the next SIGHUP.
        (tmp_path / "keys").write_text("fedcba9876543210 bert\n")
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: server.translate("a", api_key="fedcba9876543210")[0] == 200, "the new key")
        assert server.translate("a", api_key="0123456789abcdef")[0] == 403
        assert server.stop()[0] == 0
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert {"anna", "bert"} == {line["client"] for line in lines if "client" in line}
    assert set(lines[6]) == {"time", "method", "path", "status", "ms", "client", "characters", "sentences"}
    for secret in ("nothing of this", "0123456789", "fedcba"):
        assert secret not in log.read_text()


def test_a_newer_model_takes_over_and_ending_finishes_without_losing_a_request(models, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(models["en-de"], model)
    with running(str(model)) as server:
        before = server.translate(SENTENCES[0])[1]["translatedText"]
        answers, stopped, refused = [], threading.Event(), []

        def load():
            while not stopped.is_set():
                try:
                    answers.append(server.translate(SENTENCES[0])[:2])
                except (urllib.error.URLError, ConnectionError) as error:
                    refused.append((stopping.is_set(), error))
                    return

        stopping = threading.Event()
        clients = [threading.Thread(target=load) for _ in range(6)]
        for client in clients:
            client.start()
        replace_model(model, models["newer"])
        server.process.send_signal(signal.SIGHUP)
        wait_until(
            lambda: any(value["translatedText"] != before for _, value in answers), "the newer model", 60
        )
        (model / "model.bin").write_bytes(b"broken")
        server.process.send_signal(signal.SIGHUP)
        number = len(answers)
        wait_until(lambda: len(answers) > number + 50, "more answers", 60)
        assert {status for status, _ in answers} == {200}
        assert len({value["translatedText"] for _, value in answers}) == 2
        assert answers[-1][1]["translatedText"] != before
        stopping.set()
        code, said = server.stop()
        stopped.set()
        for client in clients:
            client.join(60)
    assert code == 0
    assert "a newer model has taken over" in said
    assert "stays as it was" in said
    # Who comes once it ends is not let in; what was let in was answered, and the answer arrived.
    assert all(late for late, _ in refused), refused
    logged = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    assert len([line for line in logged if line["path"] == "/translate"]) == len(answers) + 1
