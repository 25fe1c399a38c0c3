//! Measures a fleet of hosts without datapaths on a cluster of three southbound servers: the
//! servers' cost when hosts read all rows or only those that they need, and the time until all
//! hosts have reconnected after the leader is killed.
//!
//! ```sh
//! WEFT_HOSTS=200 WEFT_PORTS=20 cargo bench -p chassis --bench fleet
//! ```
//!
//! Each host serves its own gateway router, with a switch of `WEFT_PORTS` ports behind it.

use chassis::{Host, Settings, of_southbound};
use flow::{Dscp, TunnelType};
use ovsdb::io::{Client, wait_any};
use ovsdb::{Config, Event, Remote};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use testkit::program::{Running, command, run, wait_for_server};
use testkit::random::environment;

/// The longest wait for a state of the fleet.
const PATIENCE: Duration = Duration::from_secs(300);
const SERVERS: usize = 3;

fn main() {
    let hosts = environment("WEFT_HOSTS", 200) as usize;
    let ports = environment("WEFT_PORTS", 20) as usize;
    let deployment = Deployment::start();
    deployment.make_network(hosts, ports);
    let flows = deployment.sbctl("--columns=_uuid list Logical_Flow");
    let flows = flows.lines().filter(|line| !line.is_empty()).count();
    say(&format!("{hosts} hosts, {SERVERS} servers, {flows} logical flows"));
    let mut deployment = deployment;
    for monitor_all in [true, false] {
        let what = if monitor_all { "everything" } else { "their rows" };
        deployment.measure(what, hosts, monitor_all);
    }
}

fn say(line: &str) {
    writeln!(std::io::stdout(), "{line}").expect("standard output can be written");
}

/// Databases and ovn-northd.
struct Deployment {
    directory: PathBuf,
    servers: Vec<Option<Running>>,
    _northd: Running,
    _northbound: Running,
}

impl Deployment {
    fn start() -> Self {
        let directory = std::env::temp_dir().join(format!("weft-fleet-{}", std::process::id()));
        fs::create_dir(&directory).expect("a directory can be made");
        let at = directory.as_path();
        let tool = |words: &[&str]| {
            let (program, arguments) = words.split_first().expect("a program");
            run(with(program, at, arguments), b"");
        };
        tool(&["ovsdb-tool", "create", "nb.db", "/usr/share/ovn/ovn-nb.ovsschema"]);
        let schema = "/usr/share/ovn/ovn-sb.ovsschema";
        tool(&["ovsdb-tool", "create-cluster", "sb0.db", schema, &raft(at, 0)]);
        for number in 1..SERVERS {
            let file = format!("sb{number}.db");
            let words = ["ovsdb-tool", "join-cluster", &file, "OVN_Southbound"];
            tool(&[&words[..], &[&raft(at, number), &raft(at, 0)]].concat());
        }
        let northbound = server(at, "nb", "nb.log");
        let servers: Vec<_> =
            (0..SERVERS).map(|number| Some(southbound_server(at, number))).collect();
        let all = remotes(at);
        let all = all.iter().map(Remote::to_string).collect::<Vec<_>>().join(",");
        let arguments = [
            &format!("--ovnnb-db=unix:{}/nb.sock", at.display()),
            &format!("--ovnsb-db={all}"),
            "--unixctl=northd.ctl",
            "-vsyslog:off",
        ];
        let northd = Running::start("ovn-northd", with("ovn-northd", at, &arguments), at);
        Self { directory, servers, _northd: northd, _northbound: northbound }
    }

    fn ctl(&self, program: &str, database: &str, words: &[&str]) -> String {
        let at = self.directory.as_path();
        let options = [&format!("--db={database}"), "--timeout=120"];
        run(with(program, at, &[&options[..], words].concat()), b"")
    }

    fn nbctl(&self, words: &[&str]) -> String {
        self.ctl("ovn-nbctl", &format!("unix:{}/nb.sock", self.directory.display()), words)
    }

    fn sbctl(&self, command: &str) -> String {
        let all = remotes(&self.directory);
        let all = all.iter().map(Remote::to_string).collect::<Vec<_>>().join(",");
        self.ctl("ovn-sbctl", &all, &command.split_whitespace().collect::<Vec<_>>())
    }

    fn make_network(&self, hosts: usize, ports: usize) {
        for host in 0..hosts {
            let [high, low] = u16::try_from(host).expect("at most 65,535 hosts").to_be_bytes();
            let mut words = format!(
                "lr-add r{host} -- set Logical_Router r{host} options:chassis=h{host} -- \
                 ls-add s{host} -- lrp-add r{host} r{host}-s 02:01:00:00:{high:02x}:{low:02x} \
                 10.{high}.{low}.1/24 -- lsp-add s{host} s{host}-r -- lsp-set-type s{host}-r \
                 router -- lsp-set-addresses s{host}-r router -- lsp-set-options s{host}-r \
                 router-port=r{host}-s"
            );
            for port in 2..ports + 2 {
                let name = format!("s{host}-{port}");
                words += &format!(" -- lsp-add s{host} {name} -- lsp-set-addresses {name} unknown");
            }
            self.nbctl(&words.split_whitespace().collect::<Vec<_>>());
        }
        self.nbctl(&["--wait=sb", "sync"]);
    }

    fn measure(&mut self, what: &str, hosts: usize, monitor_all: bool) {
        let remotes = remotes(&self.directory);
        let before = self.processor_time();
        let begin = Instant::now();
        let mut fleet = Fleet::start(hosts, &remotes, monitor_all);
        fleet.until("all hosts are registered", |fleet| fleet.is_registered());
        let took = begin.elapsed();
        self.report(what, "start of all hosts", took, before);
        let rows: usize = fleet.members.iter().map(|it| it.client.session().replica().len()).sum();
        say(&format!("{what:<12} rows of a host                  {:>8}", rows / hosts));
        let received: u64 = fleet.members.iter().map(|it| it.received).sum();
        say(&format!("{what:<12} updates until then, all hosts   {received:>8}"));

        let before = self.processor_time();
        let begin = Instant::now();
        let nbctl = [&format!("--db=unix:{}/nb.sock", self.directory.display()), "--timeout=120"];
        let command = with(
            "ovn-nbctl",
            &self.directory,
            &[&nbctl[..], &["--wait=hv", "lsp-add", "s0", &format!("new{monitor_all}")]].concat(),
        );
        let change = std::thread::spawn(move || run(command, b""));
        fleet.until("the change is confirmed", |_| change.is_finished());
        drop(change.join().expect("ovn-nbctl succeeds"));
        self.report(what, "a port, confirmed by all hosts", begin.elapsed(), before);

        let leader = self.leader();
        let begin = Instant::now();
        self.servers[leader].take().expect("it runs").kill();
        // The hosts notice the loss only after a moment.
        let lost = Instant::now() + Duration::from_secs(1);
        fleet.until("all hosts are back", |fleet| Instant::now() > lost && fleet.is_ready());
        let affected = fleet.members.iter().filter(|member| member.ready_at > begin).count();
        say(&format!("{what:<12} leader killed, connections lost {affected:>8}"));
        let last = fleet.members.iter().map(|member| member.ready_at).max().unwrap_or(begin);
        let last = last.saturating_duration_since(begin).as_millis();
        say(&format!("{what:<12} leader killed, all back after  {last:>8} ms"));
        self.servers[leader] = Some(southbound_server(&self.directory, leader));
        // ovn-northd connects to the new leader.
        self.nbctl(&["--wait=sb", "sync"]);
    }

    fn report(&self, what: &str, event: &str, took: Duration, before: u64) {
        let processor_ms = self.processor_time() - before;
        say(&format!("{what:<12} {event:<31} {:>8} ms", took.as_millis()));
        say(&format!("{what:<12}   of the servers' processors    {processor_ms:>8} ms"));
    }

    /// The processor time of all servers in milliseconds.
    fn processor_time(&self) -> u64 {
        let of = |server: &Running| {
            let stat = fs::read_to_string(format!("/proc/{}/stat", server.id())).ok()?;
            let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split_whitespace().collect();
            let ticks = |at: usize| fields.get(at)?.parse::<u64>().ok();
            Some((ticks(11)? + ticks(12)?) * 10)
        };
        self.servers.iter().flatten().filter_map(of).sum()
    }

    fn leader(&self) -> usize {
        let is_leader = |number: &usize| {
            let control = format!("{}/sb{number}.ctl", self.directory.display());
            let words = ["-t", &control, "cluster/status", "OVN_Southbound"];
            run(with("ovs-appctl", &self.directory, &words), b"").contains("Role: leader")
        };
        (0..SERVERS).find(is_leader).expect("a leader")
    }
}

impl Drop for Deployment {
    fn drop(&mut self) {
        // If that fails, only temporary files remain.
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn with(program: &str, at: &Path, arguments: &[&str]) -> Command {
    let mut command = command(program);
    for variable in ["OVS_RUNDIR", "OVN_RUNDIR", "OVS_LOGDIR", "OVN_LOGDIR", "OVS_DBDIR"] {
        command.env(variable, at);
    }
    command.current_dir(at).args(arguments);
    command
}

fn raft(at: &Path, number: usize) -> String {
    format!("unix:{}/raft{number}.sock", at.display())
}

fn server(at: &Path, name: &str, log: &'static str) -> Running {
    let remote = format!("--remote=punix:{}/{name}.sock", at.display());
    let control = format!("--unixctl={}/{name}.ctl", at.display());
    let file = format!("{name}.db");
    let command = with("ovsdb-server", at, &[&file, &remote, &control, "-vsyslog:off"]);
    let running = Running::start(log, command, at);
    wait_for_server(&at.join(format!("{name}.sock")));
    running
}

fn southbound_server(at: &Path, number: usize) -> Running {
    server(at, &format!("sb{number}"), ["sb0.log", "sb1.log", "sb2.log"][number])
}

fn remotes(at: &Path) -> Vec<Remote> {
    let remote = |number| format!("unix:{}/sb{number}.sock", at.display());
    (0..SERVERS).map(|number| remote(number).parse().expect("a remote")).collect()
}

struct Fleet {
    members: Vec<Member>,
}

struct Member {
    client: Client,
    host: Host,
    may_transact: bool,
    /// Changes of rows since its start.
    received: u64,
    is_ready: bool,
    /// When the session became ready last.
    ready_at: Instant,
}

impl Fleet {
    fn start(hosts: usize, remotes: &[Remote], monitor_all: bool) -> Self {
        let member = |number: usize| {
            let [high, low] = u16::try_from(number).expect("few hosts").to_be_bytes();
            let settings = Settings {
                system_id: format!("h{number}").into(),
                hostname: format!("h{number}").into(),
                remotes: remotes.to_vec(),
                tunnels: vec![TunnelType::Geneve],
                encap_ip: [10, 255, high, low].into(),
                checksum: true,
                dscp: Dscp::Fixed(0),
                bridge: "br-int".into(),
                bridge_mappings: "".into(),
                cms_options: "".into(),
                transport_zones: BTreeSet::new(),
                monitor_all,
                probe_interval: Some(Duration::from_secs(60)),
                announce_interval: None,
                upcall_cpu_percent: None,
                tls: None,
            };
            let mut config = Config::new("OVN_Southbound", settings.remotes.clone());
            config.tables = of_southbound(&settings);
            let config = config.seed(number as u64);
            let mut client = Client::new(config, None).expect("a client can be made");
            let mut host = Host::new(settings, "uplink", 1500);
            host.request_rows(client.session_mut());
            Member {
                client,
                host,
                may_transact: true,
                received: 0,
                is_ready: false,
                ready_at: Instant::now(),
            }
        };
        Self { members: (0..hosts).map(member).collect() }
    }

    /// Runs all hosts until `done` is true.
    fn until(&mut self, what: &str, done: impl Fn(&Self) -> bool) {
        let end = Instant::now() + PATIENCE;
        while !done(self) {
            assert!(Instant::now() < end, "{what}: not within {PATIENCE:?}");
            let mut clients: Vec<_> = self.members.iter_mut().map(|it| &mut it.client).collect();
            wait_any(&mut clients, Some(Instant::now() + Duration::from_millis(100)));
            self.members.iter_mut().for_each(Member::serve);
        }
    }

    fn is_ready(&self) -> bool {
        self.members.iter().all(|it| it.client.session().is_ready() && it.host.is_settled())
    }

    /// True if every host has its row and its gateway router.
    fn is_registered(&self) -> bool {
        self.is_ready() && self.members.iter().all(|it| it.host.flow_counts().0 > 0)
    }
}

impl Member {
    fn serve(&mut self) {
        let now = Instant::now();
        while let Some(event) = self.client.session_mut().poll_event() {
            let replica = self.client.session().replica();
            match event {
                Event::Update(update) => {
                    self.received += update.changes.len() as u64;
                    let is_first = update.is_first();
                    self.host.handle_southbound(replica, &update.changes, is_first, now);
                }
                Event::ConditionsApplied { seqno } => self.host.conditions_applied(seqno, replica),
                Event::Transacted { .. } | Event::Disconnected { .. } => self.may_transact = true,
                _ => {}
            }
        }
        self.host.request_rows(self.client.session_mut());
        let was_ready = std::mem::replace(&mut self.is_ready, self.client.session().is_ready());
        if !self.is_ready {
            return;
        }
        if !was_ready {
            self.ready_at = now;
        }
        let replica = self.client.session().replica();
        if let Some(installation) = self.host.installation(replica, now) {
            self.host.installed(installation);
        }
        if self.may_transact {
            let (transaction, _) =
                self.host.southbound_transaction(replica, (now, 0), &BTreeMap::new());
            if let Some(transaction) = transaction {
                self.may_transact = self.client.session_mut().transact(transaction).is_err();
            }
        }
    }
}
