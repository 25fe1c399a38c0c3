//! Tests TCP and TLS, several remotes, and slow readers.

use crate::harness::{Directory, Driver, Server, zoo_schema};
use crate::random::zoo;
use ovsdb::io::TlsFiles;
use ovsdb::{Config, Remote, RowValues, TransactOutcome, Transaction};
use std::io::Write;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

fn insert(driver: &mut Driver) {
    let row = RowValues::new().set("name", "cat");
    let outcome = driver.transact(Transaction::new().insert("Animal", row));
    assert!(matches!(outcome, TransactOutcome::Committed(_)), "{outcome:?}");
}

#[test]
fn next_remote_is_used_when_one_does_not_answer() {
    testkit::require_program!("ovsdb-server", "openvswitch-switch");
    let server = Server::start("tcp", &zoo_schema(), &["--remote=ptcp:0:127.0.0.1"]);
    let used = server.port();
    // Nothing listens on port 1.
    let list = format!("tcp:127.0.0.1:1,unix:/nowhere/db.sock,tcp:127.0.0.1:{used}");
    for seed in 0..3 {
        let remotes = Remote::parse_list(&list).unwrap();
        let mut driver = Driver::new(Config { remotes, ..zoo(&server) }.seed(seed));
        insert(&mut driver);
        driver.until_equal(&server);
        let used = format!("tcp:127.0.0.1:{used}");
        assert_eq!(driver.client.session().remote().unwrap().to_string(), used);
        for reason in driver.reasons() {
            assert!(reason.contains("refused") || reason.contains("No such file"), "{reason}");
        }
    }
    testkit::report::peer("ovsdb-server", "TCP, after remotes that do not answer");
}

/// Creates a certificate authority, and certificates of a server and a client.
fn make_certificates(directory: &Directory, authority: &str) {
    let openssl = |arguments: &str| {
        directory.run("openssl", &arguments.split(' ').collect::<Vec<_>>());
    };
    let curve = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";
    let path = |name: &str| format!("{authority}-{name}");
    openssl(&format!(
        "req -x509 {curve} -keyout {} -out {} -subj /CN=authority -days 2",
        path("ca.key"),
        path("ca.pem")
    ));
    for name in ["server", "client"] {
        openssl(&format!(
            "req {curve} -keyout {} -out {} -subj /CN={name}",
            path(&format!("{name}.key")),
            path(&format!("{name}.csr"))
        ));
        let extensions = path(&format!("{name}.ext"));
        let text = format!("basicConstraints=CA:false\nsubjectAltName=DNS:{name}.example\n");
        std::fs::write(directory.path().join(&extensions), text).unwrap();
        openssl(&format!(
            "x509 -req -in {} -CA {} -CAkey {} -out {} -days 2 -extfile {extensions} -set_serial 7",
            path(&format!("{name}.csr")),
            path("ca.pem"),
            path("ca.key"),
            path(&format!("{name}.pem"))
        ));
    }
}

fn client_files(directory: &Path, authority: &str, server_name: Option<&str>) -> TlsFiles {
    let path = |name: &str| directory.join(format!("{authority}-{name}"));
    TlsFiles {
        private_key: path("client.key"),
        certificate: path("client.pem"),
        ca_certificate: path("ca.pem"),
        server_name: server_name.map(str::to_owned),
    }
}

#[test]
fn tls_is_used_and_certificates_are_checked_both_ways() {
    testkit::require_program!("ovsdb-server", "openvswitch-switch");
    testkit::require_program!("openssl", "openssl");
    let keys = Directory::new("keys");
    make_certificates(&keys, "good");
    make_certificates(&keys, "evil");
    let at = keys.path().display();
    let server = Server::start(
        "tls",
        &zoo_schema(),
        &[
            "--remote=pssl:0:127.0.0.1",
            &format!("--private-key={at}/good-server.key"),
            &format!("--certificate={at}/good-server.pem"),
            &format!("--ca-cert={at}/good-ca.pem"),
        ],
    );
    let remote: Remote = format!("ssl:127.0.0.1:{}", server.port()).parse().unwrap();
    let config = Config { remotes: vec![remote], ..zoo(&server) };
    for server_name in [None, Some("server.example")] {
        let files = client_files(keys.path(), "good", server_name);
        let mut driver = Driver::with_tls(config.clone(), Some(files));
        insert(&mut driver);
        driver.until_equal(&server);
        assert_eq!(driver.reasons(), [""; 0]);
    }
    let refused = |files: Option<TlsFiles>, expected: &str| {
        let mut driver = Driver::with_tls(config.clone(), files);
        driver.until("a refusal", |driver| !driver.reasons().is_empty());
        let reason = &driver.reasons()[0];
        assert!(reason.contains(expected), "{reason}");
    };
    refused(None, "an ssl: remote needs a private key and certificates");
    let good = client_files(keys.path(), "good", None);
    let untrusted = client_files(keys.path(), "evil", None);
    refused(Some(client_files(keys.path(), "good", Some("other.example"))), "not valid for name");
    refused(Some(client_files(keys.path(), "good", Some("no name"))), "`no name` is no DNS name");
    refused(Some(untrusted.clone()), "BadSignature");
    // The authority has the right name, but another key, so the signature is invalid. The server
    // also refuses such a client.
    let wrong_authority = TlsFiles { ca_certificate: good.ca_certificate.clone(), ..untrusted };
    refused(Some(wrong_authority), "TLS");
    refused(
        Some(TlsFiles { private_key: keys.path().join("absent.key"), ..good.clone() }),
        "cannot read the private key",
    );
    refused(
        Some(TlsFiles { certificate: good.private_key.clone(), ..good }),
        "no certificate in it",
    );
    testkit::report::peer("ovsdb-server", "TLS with client certificates, with and without SNI");
}

#[test]
fn replica_is_complete_when_the_reader_is_slow() {
    testkit::require_program!("ovsdb-server", "openvswitch-switch");
    let server = Server::start("slow", &zoo_schema(), &[]);
    let mut slow = Driver::new(zoo(&server));
    slow.until_ready();
    let mut writer = Driver::new(zoo(&server));
    let text = "x".repeat(20_000);
    // More than all socket buffers together hold.
    for number in 0..200 {
        let row = RowValues::new().set("name", &*text).set("legs", number);
        writer.transact(Transaction::new().insert("Animal", row));
    }
    let lengths = |driver: &Driver| driver.client.session().replica().len();
    assert_eq!((lengths(&slow), lengths(&writer)), (0, 200));
    slow.until_equal(&server);
    assert_eq!(slow.reasons(), [""; 0], "slow is not dead");
    let rows: usize = slow.updates.iter().map(|update| update.changes.len()).sum();
    assert_eq!(rows, 200);
}

#[test]
fn client_gives_up_a_server_that_floods_or_is_silent() {
    let directory = Directory::new("flood");
    let path = directory.path().join("db.sock");
    let listener = UnixListener::bind(&path).unwrap();
    // One message without end, then silence.
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.write_all(b"{\"id\":0,\"result\":[\"");
        while stream.write_all(&[b'x'; 1 << 16]).is_ok() {}
        let (stream, _) = listener.accept().unwrap();
        (stream, listener)
    });
    let mut config = Config::new("zoo", [Remote::Unix(path)]);
    config.limits.message_bytes = 1 << 20;
    config.times.probe_interval = Some(Duration::from_millis(50));
    config.times.min_backoff = Duration::from_millis(50);
    let mut driver = Driver::new(config);
    driver.until("two reasons", |driver| driver.reasons().len() >= 2);
    assert!(driver.reasons()[0].contains("limit message_bytes"), "{:?}", driver.reasons());
    assert!(driver.reasons()[1].contains("probe_interval"), "{:?}", driver.reasons());
    drop(server.join());
}

#[test]
fn waiting_client_returns_when_it_is_woken() {
    let mut driver = Driver::new(Config::new("zoo", []));
    let waker = driver.client.waker();
    let waiting = thread::spawn(move || driver.client.next_event(None).is_none());
    waker.wake();
    assert!(waiting.join().unwrap());
    let mut driver = Driver::new(Config::new("zoo", []));
    assert!(driver.client.next_event(Some(Instant::now())).is_none());
}
