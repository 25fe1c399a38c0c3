//! `weft-cni`: a plugin of the Container Network Interface (CNI), version 1.1. It attaches
//! containers to ports of pools of the switch on this host.
//!
//! The plugin stores no state. The daemon stores the port and the owner of each attached interface.
//! The names of interfaces are computed from network, container and interface name. DEL gets the
//! same names, so it finds interfaces that a killed plugin left behind. GC compares the daemon's
//! list and the names of interfaces with the list of valid attachments.
//!
//! - `config`: the environment and the network configuration
//! - `daemon`: the client of the control socket
//! - `interface`: the veth pair of a container
//! - `ipam`: delegation of addresses to another plugin
//! - `operations`: what each command does
//! - `outcome`: results and errors as JSON
#![forbid(unsafe_code)]

mod config;
mod daemon;
mod interface;
mod ipam;
mod operations;
mod outcome;

use config::{Command, Environment, NetworkConfig};
use outcome::Error;
use std::io::{Read, Write};
use std::process::ExitCode;

/// The longest configuration that is accepted.
const MAX_CONFIG_BYTES: u64 = 4 << 20;

const USAGE: &str = "\
weft-cni is a CNI plugin: container runtimes start it with CNI_COMMAND in its environment and the
network configuration on its standard input.

Example of a configuration, /etc/cni/net.d/10-pods.conflist:
  {
    \"cniVersion\": \"1.1.0\",
    \"name\": \"pods\",
    \"plugins\": [ { \"type\": \"weft-cni\", \"pool\": \"pods\" } ]
  }

Example by hand:
  echo '{\"cniVersion\":\"1.1.0\"}' | CNI_COMMAND=VERSION weft-cni

docs/cni.md describes the keys. Exit codes: 0 success, 1 failure, with a JSON object that says why on
standard output; 2 bad usage.
";

fn main() -> ExitCode {
    if std::env::args_os().len() > 1 {
        let asks = std::env::args().skip(1).all(|word| matches!(&*word, "--help" | "-h"));
        return match asks {
            true => print(USAGE),
            false => {
                eprint!("weft-cni takes no arguments except --help\n\n{USAGE}");
                ExitCode::from(2)
            }
        };
    }
    if std::env::var_os("CNI_COMMAND").is_none() {
        eprint!("{USAGE}");
        return ExitCode::from(2);
    }
    let mut input = Vec::new();
    let read = std::io::stdin().take(MAX_CONFIG_BYTES).read_to_end(&mut input);
    let version = config::version_of(&input);
    let result = match read {
        Ok(_) => run(&input),
        Err(error) => Err(Error::new(outcome::IO, "cannot read the configuration", error)),
    };
    match result {
        Ok(None) => ExitCode::SUCCESS,
        Ok(Some(text)) => print(&text),
        Err(error) => {
            print(&error.to_json(&version));
            ExitCode::FAILURE
        }
    }
}

fn print(text: &str) -> ExitCode {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.write_all(b"\n")) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Executes the command of the environment. Returns the result to print, if there is one.
fn run(input: &[u8]) -> Result<Option<String>, Error> {
    let environment = Environment::read()?;
    if environment.command == Command::Version {
        return Ok(Some(outcome::versions(&config::version_of(input))));
    }
    let config = NetworkConfig::parse(input)?;
    operations::execute(&environment, &config)
}
