//! Servers in their own directories, and clients that are driven until a condition holds.

use ovsdb::io::{Client, TlsFiles};
use ovsdb::{Config, Event, Remote, Replica, RequestId, TransactOutcome, Transaction, Update};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::time::{Duration, Instant};
use std::{env, fs};
use testkit::host::wait_until;
use testkit::program::{LIMIT, Running, command, run, wait_for_server};

/// The schema of ovs-vswitchd on Debian.
pub const VSWITCH_SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";

/// A directory that is removed when dropped.
pub struct Directory(PathBuf);

impl Directory {
    pub fn new(name: &str) -> Self {
        let path = env::temp_dir().join(format!("ovsdb-{}-{name}", process::id()));
        fs::create_dir(&path).expect("a directory can be made");
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Runs an OVS program in the directory; returns its standard output.
    pub fn run(&self, program: &str, arguments: &[&str]) -> String {
        run(self.command(program, arguments), b"")
    }

    pub fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let mut call = command(program);
        for variable in ["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR"] {
            call.env(variable, &self.0);
        }
        call.current_dir(&self.0).args(arguments);
        call
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // If that fails, only temporary files remain.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A server of one database file.
pub struct Server {
    // Stopped before its directory is removed.
    running: Option<Running>,
    pub directory: Directory,
    database: String,
    arguments: Vec<String>,
}

impl Server {
    /// Starts a server of an empty database with a schema; it listens on `db.sock`.
    pub fn start(name: &str, schema: &str, arguments: &[&str]) -> Self {
        let directory = Directory::new(name);
        directory.run("ovsdb-tool", &["create", "db", schema]);
        let arguments = arguments.iter().map(ToString::to_string).collect();
        let database = directory.run("ovsdb-tool", &["schema-name", schema]).trim().to_owned();
        let mut server = Self { running: None, directory, database, arguments };
        server.restart();
        server
    }

    /// Starts the server again on the same file.
    pub fn restart(&mut self) {
        self.stop();
        let mut arguments =
            vec!["db", "--remote=punix:db.sock", "--unixctl=ctl", "-vsyslog:off", "-vfile:off"];
        arguments.extend(self.arguments.iter().map(String::as_str));
        let call = self.directory.command("ovsdb-server", &arguments);
        self.running = Some(Running::start("ovsdb-server", call, self.directory.path()));
        wait_for_server(&self.directory.path().join("db.sock"));
        // A server listens slightly before `_Server` names its database.
        let arguments = ["-t", "30", "wait", "unix:db.sock", &self.database, "connected"];
        self.directory.run("ovsdb-client", &arguments);
    }

    pub fn stop(&mut self) {
        self.running = None;
    }

    /// The port that the kernel chose for `ptcp:0` or `pssl:0`, from the server's log.
    pub fn port(&self) -> u16 {
        let mut port = None;
        wait_until(LIMIT, "the server listens on a port", || {
            let output = self.running.as_ref().map(Running::output).unwrap_or_default();
            let text = output.split("listening on port ").nth(1).map(str::to_owned);
            // The line may be written in parts.
            port = text.and_then(|text| text.split_once('\n')?.0.parse().ok());
            port.is_some()
        });
        port.expect("a port")
    }

    pub fn remote(&self) -> Remote {
        Remote::Unix(self.directory.path().join("db.sock"))
    }

    /// Executes a transaction with ovsdb-client; returns the result.
    pub fn transact(&self, transaction: &str) -> serde_json::Value {
        let output = self.directory.run("ovsdb-client", &["transact", "unix:db.sock", transaction]);
        let result: serde_json::Value = serde_json::from_str(&output).expect("a result");
        assert!(!output.contains("\"error\""), "{transaction}: {output}");
        result
    }

    /// All rows in the output of `ovsdb-client dump`.
    pub fn dump(&self, database: &str) -> Dump {
        let arguments = ["dump", "--format=json", "unix:db.sock", database];
        parse_dump(&self.directory.run("ovsdb-client", &arguments))
    }
}

/// Rows as JSON text by table, UUID and column.
pub type Dump = BTreeMap<String, BTreeMap<String, BTreeMap<String, String>>>;

/// Parses the output of `ovsdb-client dump --format=json`.
pub fn parse_dump(text: &str) -> Dump {
    let tables = serde_json::Deserializer::from_str(text).into_iter::<serde_json::Value>();
    let mut dump = Dump::new();
    for table in tables {
        let table = table.expect("a dump is JSON");
        let caption = table["caption"].as_str().expect("a caption");
        let name = caption.strip_suffix(" table").expect("a table").to_owned();
        let headings: Vec<_> =
            table["headings"].as_array().expect("headings").iter().map(text_of).collect();
        let rows = dump.entry(name).or_default();
        for cells in table["data"].as_array().expect("data") {
            let cells =
                cells.as_array().expect("cells").iter().map(|cell| sorted(cell).to_string());
            let mut row: BTreeMap<_, _> = headings.iter().cloned().zip(cells).collect();
            let uuid = row.remove("_uuid").expect("a UUID");
            let uuid = uuid.trim_matches(|c| "[]\"".contains(c)).trim_start_matches("uuid\",\"");
            rows.insert(uuid.to_owned(), row);
        }
    }
    dump.retain(|_, rows| !rows.is_empty());
    dump
}

fn text_of(value: &serde_json::Value) -> String {
    value.as_str().expect("text").to_owned()
}

/// Sorts the elements of sets and maps, and writes reals without a fraction as integers, because
/// programs print these differently.
fn sorted(value: &serde_json::Value) -> serde_json::Value {
    let mut value = value.clone();
    plain(&mut value);
    if let Some([tag, serde_json::Value::Array(list)]) = value.as_array_mut().map(Vec::as_mut_slice)
        && (tag == "set" || tag == "map")
    {
        list.sort_by_key(ToString::to_string);
    }
    value
}

fn plain(value: &mut serde_json::Value) {
    match value {
        serde_json::Value::Array(list) => list.iter_mut().for_each(plain),
        serde_json::Value::Number(number) => {
            let real = number.as_f64().filter(|real| real.fract() == 0.0 && real.abs() < 1e15);
            if let Some(real) = real {
                *value = (real as i64).into();
            }
        }
        _ => {}
    }
}

/// All rows of a replica.
pub fn dump_of(replica: &Replica) -> Dump {
    let mut dump = Dump::new();
    for table in replica.tables() {
        for row in table.rows() {
            let columns = row
                .iter()
                .map(|(name, value)| (name.to_string(), sorted(&value.to_json()).to_string()));
            let table = dump.entry(row.table().to_string()).or_default();
            table.insert(row.uuid().to_string(), columns.collect());
        }
    }
    dump
}

/// A client that is driven until a condition holds.
pub struct Driver {
    pub client: Client,
    /// All updates so far.
    pub updates: Vec<Update>,
    /// All other events so far.
    pub events: Vec<Event>,
}

impl Driver {
    pub fn new(config: Config) -> Self {
        Self::with_tls(config, None)
    }

    pub fn with_tls(config: Config, tls: Option<TlsFiles>) -> Self {
        let client = Client::new(config, tls).expect("a client");
        Self { client, updates: Vec::new(), events: Vec::new() }
    }

    /// Drives the client until `done` returns true. Panics after the time limit of programs.
    pub fn until(&mut self, what: &str, mut done: impl FnMut(&Self) -> bool) {
        let deadline = Instant::now() + LIMIT + Duration::from_secs(1);
        while !done(self) {
            assert!(Instant::now() < deadline, "{what}: timed out after {:#?}", self.events);
            let step = Instant::now() + Duration::from_millis(50);
            match self.client.next_event(Some(step)) {
                Some(Event::Update(update)) => self.updates.push(update),
                Some(event) => self.events.push(event),
                None => {}
            }
        }
    }

    /// Drives the client until its replica is complete.
    pub fn until_ready(&mut self) {
        self.until("the replica is complete", |driver| driver.client.session().is_ready());
    }

    /// Drives the client until the replica equals what the server dumps.
    pub fn until_equal(&mut self, server: &Server) {
        let database = self.client.session().config().database.to_string();
        self.until_dump(&server.dump(&database));
    }

    /// Drives the client until its replica has these rows.
    pub fn until_dump(&mut self, expected: &Dump) {
        let deadline = Instant::now() + LIMIT;
        let is_equal = |driver: &Self| dump_of(driver.client.session().replica()) == *expected;
        self.until("the replica", |driver| is_equal(driver) || Instant::now() > deadline);
        assert_eq!(dump_of(self.client.session().replica()), *expected);
    }

    /// Executes a transaction, and waits for the outcome.
    pub fn transact(&mut self, transaction: Transaction) -> TransactOutcome {
        self.until_ready();
        let id = self.client.session_mut().transact(transaction).expect("ready");
        self.outcome(id)
    }

    /// Waits for the outcome of a transaction.
    pub fn outcome(&mut self, wanted: RequestId) -> TransactOutcome {
        let find = |driver: &Self| {
            driver.events.iter().find_map(|event| match event {
                Event::Transacted { id, outcome } if *id == wanted => Some(outcome.clone()),
                _ => None,
            })
        };
        self.until("the transaction has an outcome", |driver| find(driver).is_some());
        find(self).expect("an outcome")
    }

    /// The reasons of all disconnections so far.
    pub fn reasons(&self) -> Vec<String> {
        let reason = |event: &Event| match event {
            Event::Disconnected { reason, .. } => Some(reason.to_string()),
            _ => None,
        };
        self.events.iter().filter_map(reason).collect()
    }
}

/// The schema of the tests.
pub fn zoo_schema() -> String {
    concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/zoo.ovsschema").to_owned()
}

/// Servers of one clustered database.
pub struct Cluster {
    servers: Vec<Option<Running>>,
    database: String,
    directory: Directory,
}

impl Cluster {
    /// Starts a cluster of `count` servers; each listens on its own socket.
    pub fn start(name: &str, schema: &str, count: usize) -> Self {
        let directory = Directory::new(name);
        let database = directory.run("ovsdb-tool", &["schema-name", schema]).trim().to_owned();
        directory.run("ovsdb-tool", &["create-cluster", "s0.db", schema, "unix:s0.raft"]);
        let mut cluster = Self { servers: Vec::new(), database, directory };
        for at in 0..count {
            if at > 0 {
                let (file, own) = (format!("s{at}.db"), format!("unix:s{at}.raft"));
                let arguments = ["join-cluster", &file, &cluster.database, &own, "unix:s0.raft"];
                cluster.directory.run("ovsdb-tool", &arguments);
            }
            cluster.servers.push(None);
            cluster.restart(at);
        }
        cluster
    }

    /// Starts a server that is not running.
    pub fn restart(&mut self, at: usize) {
        let (file, remote) = (format!("s{at}.db"), format!("--remote=punix:s{at}.sock"));
        let control = format!("--unixctl=s{at}.ctl");
        let arguments = [&*file, &remote, &control, "-vsyslog:off", "-vfile:off"];
        let call = self.directory.command("ovsdb-server", &arguments);
        const NAMES: [&str; 3] = ["s0", "s1", "s2"];
        self.servers[at] = Some(Running::start(NAMES[at], call, self.directory.path()));
        wait_for_server(&self.directory.path().join(format!("s{at}.sock")));
        let socket = self.socket(at);
        // The server has joined when it has the schema.
        self.directory
            .run("ovsdb-client", &["-t", "30", "wait", &socket, &self.database, "connected"]);
    }

    /// Kills a server, so that it does not close its connections in an orderly way.
    pub fn kill(&mut self, at: usize) {
        if let Some(server) = self.servers[at].take() {
            server.kill();
        }
    }

    /// The position of the leader.
    pub fn leader(&self) -> usize {
        let is_leader = |at: &usize| {
            let control = self.directory.path().join(format!("s{at}.ctl"));
            let arguments = ["-t", &*control.to_string_lossy(), "cluster/status", &self.database];
            self.servers[*at].is_some()
                && self.directory.run("ovs-appctl", &arguments).contains("Role: leader")
        };
        (0..self.servers.len()).find(is_leader).expect("a leader")
    }

    fn socket(&self, at: usize) -> String {
        format!("unix:{}/s{at}.sock", self.directory.path().display())
    }

    pub fn remotes(&self) -> Vec<Remote> {
        (0..self.servers.len()).map(|at| self.socket(at).parse().expect("a remote")).collect()
    }

    /// Executes a transaction at the first server.
    pub fn transact(&self, transaction: &str) {
        let output =
            self.directory.run("ovsdb-client", &["transact", &self.socket(0), transaction]);
        assert!(!output.contains("\"error\""), "{transaction}: {output}");
    }

    /// All rows of the first server.
    pub fn dump(&self, database: &str) -> Dump {
        let arguments = ["dump", "--format=json", &self.socket(0), database];
        parse_dump(&self.directory.run("ovsdb-client", &arguments))
    }
}
