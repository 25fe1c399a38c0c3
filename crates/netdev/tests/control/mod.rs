//! Namespaces, links, addresses, routes, neighbours, the monitor and offload features.

mod links;
mod monitor;
mod namespaces;
mod offloads;
mod routing;
