//! Elements to and from places that are far behind in a file.

use super::*;

/// Behind 2, 4 and 6 GiB, nearly all of it holes: runs of neighbours, and of spaced elements.
#[test]
fn writes_beyond_two_gigabytes() {
    let path = std::env::temp_dir().join(format!("pgas-far-{}", std::process::id()));
    let far = |gib: u64, step, memory| Run {
        file: gib << 27,
        memory,
        step,
        count: 1000,
    };
    let runs = [far(2, 1, 0), far(4, 3, 1000), far(6, 2, 4000)];
    let memory: Vec<u64> = (0..6000).map(|k| k * k + 1).collect();
    let file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)
        .unwrap();
    file.set_len((6 << 30) + 8100).unwrap();
    let transfer = Transfer::new();
    let head = 100;
    write_elements((&file, &path), head, &runs, &memory, &transfer).unwrap();
    // Where they are to be, by the system alone.
    let mut bytes = [0; 8];
    for run in &runs {
        for k in [0, 1, 999] {
            file.read_exact_at(&mut bytes, head + 8 * (run.file + k as u64))
                .unwrap();
            let right = memory[run.memory + k * run.step];
            assert_eq!(u64::from_ne_bytes(bytes), right, "{run:?} {k}");
        }
    }
    let mut again = vec![0_u64; memory.len()];
    read_elements((&file, &path), head, &runs, &mut again, &transfer, &|_| ()).unwrap();
    for (k, (&value, &right)) in again.iter().zip(&memory).enumerate() {
        let held = runs.iter().any(|run| {
            k >= run.memory
                && (k - run.memory).is_multiple_of(run.step)
                && (k - run.memory) / run.step < run.count
        });
        assert_eq!(value, if held { right } else { 0 }, "{k}");
    }
    fs::remove_file(&path).unwrap();
}
