//! Tests of client and server together.

use super::*;
use crate::Stop;
use std::net::SocketAddr;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(20);

fn server() -> Server {
    Server::start("127.0.0.1:0".parse().unwrap(), Placement::default()).unwrap()
}

#[test]
fn every_pattern_counts_what_passed_when_both_ends_are_here() {
    let stop = Stop::new();
    for pattern in Pattern::ALL {
        let server = server();
        let mut peer = Peer::connect(server.address()).unwrap();
        let load = Load::new(pattern, 64, 3).unwrap();
        let client = Client::start(&load, server.address(), Placement::default(), &stop).unwrap();
        client.begin_measuring();
        stop.wait_for("traffic", LIMIT, || {
            client.check()?;
            let (here, there) = (client.counters(), peer.counters()?);
            let enough = match pattern {
                Pattern::TcpStream => there.received_bytes > 6400,
                Pattern::TcpReverse => here.received_bytes > 6400,
                Pattern::TcpBidirectional => {
                    here.received_bytes > 6400 && there.received_bytes > 6400
                }
                Pattern::UdpStream => there.received_messages > 100 && here.sent_messages > 100,
                _ => here.transactions > 100 && there.received_bytes > 6400,
            };
            Ok(enough.then_some(()))
        })
        .unwrap_or_else(|error| panic!("{pattern}: {error}"));
        let transactions = client.counters().transactions;
        let times = client.finish().unwrap();
        assert_eq!(transactions > 0, pattern.is_transactions(), "{pattern}");
        assert_eq!(times.total() > 0, pattern.is_transactions(), "{pattern}");
    }
}

#[test]
fn no_data_is_sent_before_all_connections_are_established() {
    let stop = Stop::new();
    for pattern in [Pattern::TcpReverse, Pattern::TcpBidirectional, Pattern::TcpRr] {
        // A new server for each pattern, so that no data of an earlier pattern is counted.
        let server = server();
        let load = Load::new(pattern, 64, 2).unwrap();
        let (before, placement) = (server.received(), Placement::default());
        let connected = Connected::open(&load, server.address(), placement, &stop).unwrap();
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(connected.counters(), Counters::default(), "{pattern}");
        assert_eq!(server.received(), before, "{pattern}");
        let client = connected.begin().unwrap();
        let moves = || {
            let counters = client.counters();
            let moved = counters.received_bytes + counters.transactions > 0;
            Ok(moved.then_some(()))
        };
        stop.wait_for("traffic", LIMIT, moves).unwrap();
        client.finish().unwrap();
    }
    // Connections must also end if their traffic never started.
    let server = server();
    let load = Load::new(Pattern::TcpBidirectional, 64, 2).unwrap();
    drop(Connected::open(&load, server.address(), Placement::default(), &stop).unwrap());
}

#[test]
fn stream_keeps_its_rate_when_it_has_one() {
    let (server, stop) = (server(), Stop::new());
    let load = Load::new(Pattern::TcpStream, 1000, 2).unwrap().at_rate(8e6).unwrap();
    let client = Client::start(&load, server.address(), Placement::default(), &stop).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    client.finish().unwrap();
    let (bytes, _) = server.received();
    // At most 1 MB/s, plus the catch-up. A busy machine may send less.
    assert!((1000..=400_000).contains(&bytes), "{bytes}");
}

#[test]
fn client_gets_a_reason_when_the_server_is_another_program() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address: SocketAddr = listener.local_addr().unwrap();
    let other = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        std::io::Write::write_all(&mut stream, b"220 hello\n").unwrap();
    });
    let load = Load::new(Pattern::TcpRr, 1, 1).unwrap();
    let error = Client::start(&load, address, Placement::default(), &Stop::new()).unwrap_err();
    other.join().unwrap();
    assert!(error.to_string().contains("is it weft bench serve?"), "{error}");
    let error = Client::start(&load, address, Placement::default(), &Stop::new()).unwrap_err();
    assert!(error.to_string().contains("refused"), "{error}");
}

#[test]
fn load_fails_with_a_reason_when_the_server_dies() {
    let (server, stop) = (server(), Stop::new());
    let load = Load::new(Pattern::TcpRr, 1, 2).unwrap();
    let client = Client::start(&load, server.address(), Placement::default(), &stop).unwrap();
    drop(server);
    stop.wait_for("the failure", LIMIT, || Ok(client.check().err().map(drop))).unwrap();
    assert!(client.finish().is_err());
}

#[test]
fn port_in_use_is_named_when_a_second_server_starts() {
    let first = server();
    let error = Server::start(first.address(), Placement::default()).unwrap_err().to_string();
    assert!(error.contains(&first.address().to_string()), "{error}");
}
