//! A machine's network devices, for people and for `--net`.

use std::fs;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::Path;

/// Each device that is up, with its addresses as far as the system tells.
pub(crate) fn devices() -> Vec<String> {
    let mut names = names("/sys/class/net");
    names.retain(|name| {
        let read = |what| fs::read_to_string(format!("/sys/class/net/{name}/{what}"));
        name != "lo" && read("operstate").is_ok_and(|state| state.trim() != "down")
    });
    let (four, six) = (ipv4(), ipv6());
    let all = four.iter().chain(&six);
    let with_addresses = |name: &String| {
        let addresses = all.clone().filter(|(device, _)| device == name);
        addresses.fold(name.clone(), |text, (_, address)| text + " " + address)
    };
    let mut devices: Vec<String> = names.iter().map(with_addresses).collect();
    devices.extend(self::names("/sys/class/infiniband"));
    devices
}

/// Whether UCX could be told to use this device: `eth0`, `mlx5_0`, `mlx5_0:1`.
pub(crate) fn exists(device: &str) -> bool {
    let name = device.split(':').next().unwrap_or_default();
    let classes = ["/sys/class/net", "/sys/class/infiniband"];
    let plain = !name.is_empty() && !name.contains('/') && !name.starts_with('.');
    plain
        && classes
            .iter()
            .any(|class| Path::new(class).join(name).exists())
}

fn names(folder: &str) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

fn ipv6() -> Vec<(String, String)> {
    // address (32 digits), index, prefix length, scope, flags, device
    let text = fs::read_to_string("/proc/net/if_inet6").unwrap_or_default();
    let line = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [address, .., scope, _, device] = words[..] else {
            return None;
        };
        let address = u128::from_str_radix(address, 16).ok()?;
        // Not the ones that each device gives itself.
        (scope != "20").then(|| (device.to_owned(), Ipv6Addr::from(address).to_string()))
    };
    text.lines().filter_map(line).collect()
}

fn ipv4() -> Vec<(String, String)> {
    // Device and network of each route; an own address belongs to the device whose network it is in.
    let routes = fs::read_to_string("/proc/net/route").unwrap_or_default();
    let route = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let hexadecimal = |at: usize| u32::from_str_radix(words.get(at)?, 16).ok();
        let (network, mask) = (hexadecimal(1)?.swap_bytes(), hexadecimal(7)?.swap_bytes());
        (mask != 0).then(|| (words[0].to_owned(), network, mask))
    };
    let routes: Vec<_> = routes.lines().skip(1).filter_map(route).collect();
    // Own addresses are the leaves with `/32 host LOCAL`.
    let trie = fs::read_to_string("/proc/net/fib_trie").unwrap_or_default();
    let mut found = Vec::new();
    let mut last: Option<Ipv4Addr> = None;
    for line in trie.lines().map(str::trim) {
        if let Some(address) = line.strip_prefix("|-- ") {
            last = address.parse().ok();
        } else if line == "/32 host LOCAL"
            && let Some(address) = last
        {
            let number = u32::from(address);
            let route = routes
                .iter()
                .find(|(_, network, mask)| number & mask == *network);
            if let Some((device, ..)) = route {
                let one = (device.clone(), address.to_string());
                if !found.contains(&one) {
                    found.push(one);
                }
            }
        }
    }
    found
}
