//! Damaged bytes for keys and addresses: refused, or read as they are; never trusted by UCX, never a panic.

#[path = "fuzz/mutate.rs"]
mod mutate;

use mutate::fuzz;
use pgas::ucx::{Context, MemoryHandle, SerializedRemoteKey, WorkerAddress};
use std::path::{Path, PathBuf};

fn corpus(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus");
    folder.join(name)
}

#[test]
fn serialized_keys() {
    let context = Context::builder().job(7).rank(1).build().unwrap();
    let memory = MemoryHandle::allocate::<u64>(&context, 100).unwrap();
    let key = memory.pack().unwrap().as_bytes().to_vec();
    assert!(SerializedRemoteKey::from_bytes(&key).is_ok());
    let target = |bytes: &[u8]| {
        if let Ok(key) = SerializedRemoteKey::from_bytes(bytes) {
            assert_eq!(key.as_bytes(), bytes);
        }
    };
    fuzz(&corpus("key"), vec![key], target);
}

#[test]
fn worker_addresses() {
    let context = Context::builder().job(7).rank(1).build().unwrap();
    let address = context.worker().unwrap().address().unwrap().to_bytes();
    assert!(WorkerAddress::from_bytes(&address).is_ok());
    let target = |bytes: &[u8]| {
        if let Ok(address) = WorkerAddress::from_bytes(bytes) {
            assert_eq!(address.to_bytes(), bytes);
        }
    };
    fuzz(&corpus("address"), vec![address], target);
}
