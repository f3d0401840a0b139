//! Damaged bytes for what is read before a job's ranks know each other.

use super::store::Found;
use super::{Card, Greeting, Identity, barriers, detect, pmi1, same_software};
use crate::fuzz::fuzz;
use crate::ucx::{Context, MemoryHandle, WorkerAddress};
use crate::world::collective::{decode, encode};
use crate::world::peers::Nodes;

#[test]
fn lines_of_process_managers() {
    fuzz("pmi1", Vec::new(), |bytes| {
        bytes.split(|&byte| byte == b'\n').for_each(pmi1::digest);
    });
}

#[test]
fn files_of_rank_0() {
    fuzz("store", Vec::new(), |bytes| {
        let Ok(text) = std::str::from_utf8(bytes) else {
            return;
        };
        if let Some(found) = Found::parse(text) {
            // What is read is written as it is read.
            let again = found.text();
            let found = Found::parse(&again).unwrap();
            assert_eq!(found.text(), again);
        }
    });
}

#[test]
fn identities() {
    let me = Greeting {
        identity: Identity::of_this_process(),
        job: u128::MAX / 3,
    };
    fuzz("identity", vec![encode(&me).unwrap()], |bytes| {
        let Ok(other) = decode::<Greeting>(bytes) else {
            return;
        };
        // What is read is written as it is read.
        let again = encode(&other).unwrap();
        assert_eq!(encode(&decode::<Greeting>(&again).unwrap()).unwrap(), again);
        // What a rank makes of it.
        let everybody = [me.identity.clone(), other.identity];
        let _ = same_software(&everybody);
        let _ = barriers(&everybody);
        let nodes = Nodes::new(&everybody.clone().map(|one| one.machine()), 0);
        assert!((1..=2).contains(&nodes.count()));
    });
}

#[test]
fn cards() {
    let context = Context::builder().job(7).rank(1).build().unwrap();
    let memory = MemoryHandle::allocate::<u64>(&context, 100).unwrap();
    let card = |block| Card {
        address: context.worker().unwrap().address().unwrap().to_bytes(),
        block,
    };
    let cards = [card(None), card(Some(memory.pack().unwrap()))];
    let seeds = cards.iter().map(|card| encode(card).unwrap()).collect();
    fuzz("card", seeds, |bytes| {
        if let Ok(card) = decode::<Card>(bytes) {
            if let Ok(address) = WorkerAddress::from_bytes(&card.address) {
                assert_eq!(address.to_bytes(), card.address);
            }
            decode::<Card>(&encode(&card).unwrap()).unwrap();
        }
    });
}

#[test]
fn environments() {
    // Lines of `NAME=value`, as other programs set them. What names files and processes is left out.
    fuzz("environment", Vec::new(), |bytes| {
        let text = String::from_utf8_lossy(bytes);
        let get = |name: &str| {
            let mut pairs = text.lines().filter_map(|line| line.split_once('='));
            pairs
                .find(|pair| pair.0 == name && name != "PGAS_SECRET_FILE")
                .map(|pair| pair.1.into())
        };
        for pmix in [true, false] {
            if let Ok(detect::Found::Store(rank, size, _)) = detect::find(get, pmix) {
                assert!(rank < size);
            }
        }
    });
}
