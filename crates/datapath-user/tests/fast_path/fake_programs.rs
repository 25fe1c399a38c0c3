//! A stand-in for the kernel datapath: programs of punt_all.bpf.c, which punt every frame of a
//! guest, and GRE and tagged frames of the uplink.

use datapath_user::fast_path::{ETHERTYPE, FastPath, PathMtu, ResolvedNextHop, RouteChange};
use flow::PortNo;
use netdev::af_packet::PacketSocket;
use netdev::{Ifindex, Link, Netns};
use packet::PacketBuf;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fast_path/punt_all.bpf.c");

/// A report of the user datapath.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Report {
    PuntDevice(bool),
    Uplink(Option<Ifindex>),
    Port(PortNo, Option<Port>),
    Resolved(ResolvedNextHop),
    PathMtu(PathMtu),
}

/// The properties of a port's device that the tests check.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Port {
    pub index: Ifindex,
    pub is_usable: bool,
    pub has_peer_in_other_netns: bool,
    pub mtu: u32,
}

/// Records the reports of the user datapath, and attaches programs that punt frames.
#[derive(Debug, Default)]
pub struct FakePrograms(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    reports: Vec<Report>,
    /// True if a program is to be attached to the device of each port.
    attaches: bool,
    tap: Option<(Ifindex, PacketSocket)>,
    devices: BTreeMap<PortNo, Link>,
    /// The namespace of the devices. The thread that removes a port may be in another one.
    netns: Option<Netns>,
}

impl FakePrograms {
    /// Records reports, and attaches no programs.
    pub fn idle() -> Arc<Self> {
        Arc::default()
    }

    /// Records reports, and attaches programs that punt frames.
    pub fn attached() -> Arc<Self> {
        let state = State { attaches: true, ..State::default() };
        Arc::new(Self(Mutex::new(state)))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn record(&self, report: Report) {
        self.state().reports.push(report);
    }

    /// Attaches a program to the device of a port, or removes it when the device is gone.
    fn follow(&self, port: PortNo, link: Option<&Link>) {
        let mut state = self.state();
        let Some(link) = link else { return state.detach(port) };
        let before = state.devices.insert(port, link.clone());
        if before.is_none_or(|before| before.index != link.index) {
            state.attach(port);
        }
    }

    /// All reports since the last call of [`Self::take`].
    pub fn reports(&self) -> Vec<Report> {
        self.state().reports.clone()
    }

    /// The reports since the last call of this function.
    pub fn take(&self) -> Vec<Report> {
        std::mem::take(&mut self.state().reports)
    }

    /// The last report about a port since then.
    pub fn port(&self, port: PortNo) -> Option<Port> {
        let reports = self.reports();
        let mut ports = reports.iter().rev().filter_map(|report| match report {
            Report::Port(number, link) if *number == port => Some(link.clone()),
            _ => None,
        });
        ports.next().flatten()
    }

    /// Sends a frame unchanged through the TAP.
    pub fn send(&self, packet: &PacketBuf) {
        let state = self.state();
        let (_, tap) = state.tap.as_ref().expect("a TAP");
        tap.send(packet).unwrap();
    }

    /// Puts a punt header with the ingress port in front of a frame, and sends it through the TAP.
    pub fn punt(&self, port: PortNo, packet: &mut PacketBuf) {
        let header = packet.push_front(14).unwrap();
        header.fill(0);
        header[..4].copy_from_slice(&port.0.to_be_bytes());
        header[12..].copy_from_slice(&ETHERTYPE.0.to_be_bytes());
        self.send(packet);
    }
}

impl State {
    /// Attaches a program to the device of a port, and replaces an existing one.
    fn attach(&self, port: PortNo) {
        let (Some((tap, _)), Some(link), true) =
            (&self.tap, self.devices.get(&port), self.attaches)
        else {
            return;
        };
        let object = compile(port, *tap);
        let tc = |arguments: &[&str]| run(&mut self.tc(arguments));
        tc(&["qdisc", "replace", "dev", &link.name, "clsact"]);
        let filter =
            ["filter", "replace", "dev", &link.name, "ingress", "pref", "1", "handle", "1"];
        let path = object.to_str().expect("a path");
        tc(&[&filter[..], &["bpf", "direct-action", "obj", path, "sec", "tc"]].concat());
        std::fs::remove_file(object).unwrap();
    }

    fn detach(&mut self, port: PortNo) {
        if let (Some(link), true) = (self.devices.remove(&port), self.attaches) {
            // The device, and the program with it, may have been removed.
            let _ = self.tc(&["qdisc", "del", "dev", &link.name, "clsact"]).output();
        }
    }

    fn tc(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("tc");
        command.args(arguments);
        self.netns.as_ref().expect("a namespace").command(command)
    }
}

fn compile(port: PortNo, tap: Ifindex) -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = format!("punt-all-{}-{number}.o", std::process::id());
    let object = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let is_uplink = u8::from(port == super::UPLINK);
    run(Command::new("clang-19")
        .args(["-O2", "-g", "-target", "bpf", "-Wall", "-Werror"])
        .arg(format!("-I/usr/include/{}-linux-gnu", std::env::consts::ARCH))
        .args([
            format!("-DPORT={port}"),
            format!("-DTAP={tap}"),
            format!("-DIS_UPLINK={is_uplink}"),
        ])
        .args(["-c", SOURCE, "-o"])
        .arg(&object));
    object
}

fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
}

impl FastPath for FakePrograms {
    fn punt_device(&self, device: Option<Ifindex>) {
        self.record(Report::PuntDevice(device.is_some()));
        let mut state = self.state();
        state.tap = device.map(|index| (index, PacketSocket::open_sender(index).unwrap()));
        state.devices.keys().for_each(|port| state.attach(*port));
    }

    fn uplink(&self, link: Option<&Link>) {
        self.record(Report::Uplink(link.map(|link| link.index)));
        self.state().netns.get_or_insert_with(|| Netns::current().unwrap());
        self.follow(super::UPLINK, link);
    }

    fn port(&self, port: PortNo, link: Option<&Link>) {
        let port_report = link.map(|link| Port {
            index: link.index,
            is_usable: link.is_usable(),
            has_peer_in_other_netns: link.has_peer_in_other_netns(),
            mtu: link.mtu,
        });
        self.record(Report::Port(port, port_report));
        self.follow(port, link);
    }

    fn resolved(&self, changes: &[ResolvedNextHop]) {
        changes.iter().for_each(|change| self.record(Report::Resolved(*change)));
    }

    fn routed(&self, _: &[RouteChange]) {}

    fn path_mtus(&self, changes: &[PathMtu]) {
        changes.iter().for_each(|change| self.record(Report::PathMtu(*change)));
    }
}
