//! More bytes in one transfer than 31 bits count.

mod model;

use model::over_tcp;
use pgas::{Dist, ErrorKind, GlobalArray};

/// From one rank to another over the network.
#[test]
fn a_transfer_of_over_2_gib() {
    over_tcp(2).run(|world| {
        const CHUNK: usize = 1 << 16;
        let len = (1 << 31) + 40 * CHUNK;
        let held_by = |rank: usize, len: usize| {
            let mut lens = vec![0, 0];
            lens[rank] = len;
            let plan = GlobalArray::<u8>::builder(world, len);
            plan.dist([Dist::Irregular(lens)]).build()
        };
        // The buffer is an array, too: the library looks whether there is so much memory.
        let (mut array, mut buffer) = match (held_by(0, len + 7), held_by(1, len)) {
            (Ok(array), Ok(buffer)) => (array, buffer),
            (array, buffer) => {
                for error in [array.err(), buffer.err()].into_iter().flatten() {
                    assert_eq!(error.kind(), ErrorKind::NoRoom, "{error}");
                    let text = error.to_string();
                    assert!(text.contains("wanted") && text.contains("free"), "{text}");
                }
                return Ok(());
            }
        };
        let mut pattern: Vec<u8> = (0..251).cycle().take(CHUNK).collect();
        let mut bytes = buffer.local()?;
        if world.rank() == 1 {
            for (number, to) in bytes.chunks_exact_mut(CHUNK).enumerate() {
                pattern[..8].copy_from_slice(&number.to_le_bytes());
                to.copy_from_slice(&pattern);
            }
            array.put_range(5, &bytes)?;
            let around = (1 << 31) - CHUNK..(1 << 31) + 16 * CHUNK;
            assert!(array.get_range(around.start + 5..around.end + 5)? == bytes[around]);
        }
        bytes.close()?;
        buffer.close()?;
        let view = array.read()?;
        if world.rank() == 0 {
            assert_eq!((&view[..5], &view[len + 5..]), (&[0; 5][..], &[0; 2][..]));
            for (number, bytes) in view[5..len + 5].chunks_exact(CHUNK).enumerate() {
                pattern[..8].copy_from_slice(&number.to_le_bytes());
                assert!(bytes == pattern, "chunk {number}");
            }
        }
        view.close()?;
        array.close()
    });
}
