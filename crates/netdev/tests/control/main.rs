//! Namespaces, links, addresses, routes, neighbours, monitor and offload flags against the real kernel.

mod links;
mod monitor;
mod namespaces;
mod offloads;
mod routing;
