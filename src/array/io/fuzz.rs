//! Damaged beginnings of files.

use super::checkpoint::{Head, MAGIC};
use super::{Order, npy};
use crate::fuzz::fuzz;

#[test]
fn heads_of_checkpoints() {
    let head = Head::example().bytes().unwrap();
    // Without what a checksum vouches for, and that alone.
    let inner = head[MAGIC.len() + 8..].to_vec();
    fuzz("checkpoint", vec![head, inner], |bytes| {
        let len = u32::try_from(bytes.len()).unwrap().to_le_bytes();
        let sum = crc32c::crc32c(bytes).to_le_bytes();
        let vouched = [MAGIC.as_slice(), &len, &sum, bytes].concat();
        for bytes in [bytes, &vouched] {
            if let Ok(head) = Head::parse(bytes)
                && let Ok(again) = head.bytes()
            {
                assert_eq!(Head::parse(&again), Ok(head));
            }
        }
    });
}

#[test]
fn heads_of_numpy_files() {
    let seeds = vec![
        npy::header::<f64>(&[], Order::C),
        npy::header::<u16>(&[12, 34], Order::Fortran),
    ];
    fuzz("npy", seeds, |bytes| {
        if let Ok(header) = npy::parse(bytes) {
            assert!(header.data <= bytes.len() as u64);
            let elements = header
                .shape
                .iter()
                .try_fold(1_usize, |all, &len| all.checked_mul(len));
            assert!(elements.is_some());
        }
    });
}
