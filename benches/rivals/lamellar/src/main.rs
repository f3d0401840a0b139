//! Lamellar's arrays over its shared-memory back end: the sections of ../../rival.c that it can do.
//!
//! `lamellar-rival BATCH_MS BATCHES SECTION…` starts its processes itself, as many as RANKS says; it
//! needs no launcher.

use lamellar::array::prelude::*;
use std::cell::Cell;
use std::hint::black_box;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

const TABLE: usize = 1 << 22;
const FEW_BINS: usize = 1 << 16;
const COUNT: usize = 1_000_000;
const ROWS: usize = 1000;
const COLUMNS: usize = 1000;
const SEED: u64 = 88_172_645_463_325_252;

fn main() -> ExitCode {
    if std::env::var_os("LAMELLAR_PE_ID").is_none() {
        return start();
    }
    let arguments: Vec<String> = std::env::args().collect();
    let batches = arguments.get(2).and_then(|word| word.parse().ok());
    let Some(batches) = batches else {
        eprintln!("lamellar-rival BATCH_MS BATCHES SECTION…");
        return ExitCode::FAILURE;
    };
    let world = LamellarWorldBuilder::new().build();
    let turns = Turns {
        done: AtomicArray::new(&world, world.num_pes(), Distribution::Block).block(),
        world: &world,
    };
    for section in &arguments[3..] {
        if section == "batch" {
            batch(&turns, batches);
        }
    }
    if world.my_pe() == 0 {
        println!("figure done 1");
    }
    world.barrier();
    ExitCode::SUCCESS
}

/// Starts this program once for each rank and waits for all.
fn start() -> ExitCode {
    let ranks: u32 = std::env::var("RANKS").map_or(2, |ranks| ranks.parse().unwrap_or(2));
    let job = std::process::id();
    let children: Vec<_> = (0..ranks)
        .map(|rank| {
            Command::new(std::env::current_exe().expect("own path"))
                .args(std::env::args().skip(1))
                .env("LAMELLAR_BACKEND", "shmem")
                .env("LAMELLAR_NUM_PES", ranks.to_string())
                .env("LAMELLAR_PE_ID", rank.to_string())
                .env("LAMELLAR_JOB_ID", job.to_string())
                .env("LAMELLAR_THREADS", "1")
                .env("LAMELLAR_HEAP_SIZE", (512 << 20).to_string())
                .spawn()
                .expect("a process")
        })
        .collect();
    let mut failed = false;
    for mut child in children {
        failed |= !child.wait().expect("its end").success();
    }
    // Its segments stay.
    for file in std::fs::read_dir("/dev/shm")
        .into_iter()
        .flatten()
        .flatten()
    {
        let name = file.file_name();
        if name
            .to_string_lossy()
            .starts_with(&format!("lamellar_{job}_"))
        {
            let _ = std::fs::remove_file(file.path());
        }
    }
    if failed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}

struct Turns<'a> {
    world: &'a LamellarWorld,
    /// One for each process: how often it was told that PE 0 was ready.
    done: AtomicArray<usize>,
}

impl Turns<'_> {
    /// PE 0 works. The others sleep meanwhile, as spinning in a barrier takes the core from the
    /// thread that serves PE 0.
    fn alone(&self, work: impl FnOnce()) {
        self.world.wait_all();
        self.world.barrier();
        let me = self.world.my_pe();
        let before = self.done.local_data().at(0).load();
        self.world.barrier();
        if me == 0 {
            work();
            for pe in 0..self.world.num_pes() {
                self.done.store(pe, before + 1).block();
            }
        } else {
            while self.done.local_data().at(0).load() == before {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        self.world.wait_all();
        self.world.barrier();
    }
}

fn xorshift(mut x: u64) -> u64 {
    x ^= x << 13;
    x ^= x >> 7;
    x ^ x << 17
}

fn content(index: usize) -> u64 {
    (index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn random_indices(below: usize, mut x: u64) -> Vec<usize> {
    let mut next = || {
        x = xorshift(x);
        x as usize & (below - 1)
    };
    (0..COUNT).map(|_| next()).collect()
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// ns of one of `n`, the median of some calls after one that does not count.
fn time<R>(batches: usize, n: usize, mut call: impl FnMut() -> R) -> f64 {
    black_box(call());
    let once = || {
        let begin = Instant::now();
        black_box(call());
        begin.elapsed().as_secs_f64() * 1e9 / n as f64
    };
    median(std::iter::repeat_with(once).take(batches).collect())
}

/// Prints the least of the ways, and which it was.
fn print_best(figure: &str, ways: &[(&str, f64)]) {
    let (name, ns) = ways
        .iter()
        .min_by(|a, b| a.1.total_cmp(&b.1))
        .expect("a way");
    println!("figure {figure} {ns}");
    println!("way {figure} {name}");
}

fn print_wrong(wrong: usize) {
    println!("figure wrong {wrong}");
}

fn batch(turns: &Turns<'_>, batches: usize) {
    gather_and_scatter(turns, batches);
    for (bins, name) in [(FEW_BINS, "64k"), (TABLE, "4m")] {
        histogram(turns, batches, bins, name);
    }
    column(turns, batches);
}

fn filled(world: &LamellarWorld, len: usize, value: fn(usize) -> u64) -> UnsafeArray<u64> {
    let array = UnsafeArray::<u64>::new(world, len, Distribution::Block).block();
    // SAFETY: each process writes its own part.
    let part = unsafe { array.local_as_mut_slice() };
    let start = len / world.num_pes() * world.my_pe();
    for (offset, word) in part.iter_mut().enumerate() {
        *word = value(start + offset);
    }
    world.barrier();
    array
}

fn gather_and_scatter(turns: &Turns<'_>, batches: usize) {
    let index = random_indices(TABLE, SEED);
    let atomic = filled(turns.world, TABLE, content).into_atomic().block();
    let read_only = filled(turns.world, TABLE, content).into_read_only().block();
    let lock = filled(turns.world, TABLE, content)
        .into_local_lock()
        .block();
    turns.alone(|| {
        let wrong = |values: Vec<u64>| {
            let pairs = index.iter().zip(values);
            pairs
                .filter(|(index, value)| content(**index) != *value)
                .count()
        };
        print_wrong(wrong(atomic.batch_load(&index[..]).block()));
        print_wrong(wrong(read_only.batch_load(&index[..]).block()));
        let load_atomic = time(batches, COUNT, || atomic.batch_load(&index[..]).block());
        let load = time(batches, COUNT, || read_only.batch_load(&index[..]).block());
        let get = time(batches, COUNT, || {
            let get = |&index| read_only.blocking_get(index);
            index.iter().map(get).collect::<Vec<u64>>()
        });
        print_best(
            "gather",
            &[
                ("AtomicArray::batch_load", load_atomic),
                ("ReadOnlyArray::batch_load", load),
                ("loop of ReadOnlyArray::blocking_get", get),
            ],
        );

        let values: Vec<u64> = index.iter().map(|&index| !content(index)).collect();
        let store_atomic = time(batches, COUNT, || {
            atomic.batch_store(&index[..], &values[..]).block();
        });
        let store_lock = time(batches, COUNT, || {
            lock.batch_store(&index[..], &values[..]).block();
        });
        print_best(
            "scatter",
            &[
                ("AtomicArray::batch_store", store_atomic),
                ("LocalLockArray::batch_store", store_lock),
            ],
        );
        for read in [
            atomic.batch_load(&index[..]).block(),
            lock.batch_load(&index[..]).block(),
        ] {
            print_wrong(read.iter().zip(&values).filter(|(a, b)| a != b).count());
        }
    });
}

/// PE 0 alone, then all; ends, for all, when all have.
fn histogram(turns: &Turns<'_>, batches: usize, bins: usize, name: &str) {
    let world = turns.world;
    let index = random_indices(bins, SEED + world.my_pe() as u64);
    let atomic = filled(world, bins, |_| 0).into_atomic().block();
    let lock = filled(world, bins, |_| 0).into_local_lock().block();
    turns.alone(|| {
        let add_atomic = time(batches, COUNT, || atomic.batch_add(&index[..], 1).block());
        let add_lock = time(batches, COUNT, || lock.batch_add(&index[..], 1).block());
        print_best(
            &format!("scatter_with_{name}"),
            &[
                ("AtomicArray::batch_add", add_atomic),
                ("LocalLockArray::batch_add", add_lock),
            ],
        );
    });
    let all_atomic = time(batches, COUNT, || {
        world.barrier();
        atomic.batch_add(&index[..], 1).block();
        world.wait_all();
        world.barrier();
    });
    let all_lock = time(batches, COUNT, || {
        world.barrier();
        lock.batch_add(&index[..], 1).block();
        world.wait_all();
        world.barrier();
    });
    turns.alone(|| {
        print_best(
            &format!("update_{name}"),
            &[
                ("AtomicArray::batch_add", all_atomic),
                ("LocalLockArray::batch_add", all_lock),
            ],
        );
        // Each of the two arrays: one call that does not count, alone and by each process.
        let calls = 2 * (batches + 1) * (1 + world.num_pes());
        let everything: Vec<usize> = (0..bins).collect();
        let sum = |values: Vec<u64>| values.iter().sum::<u64>() as usize;
        let found = sum(atomic.batch_load(&everything[..]).block())
            + sum(lock.batch_load(&everything[..]).block());
        print_wrong(found.abs_diff(COUNT * calls));
    });
}

/// It has no strided access: a batch of the column's indices, or one get after another.
fn column(turns: &Turns<'_>, batches: usize) {
    let len = turns.world.num_pes() * ROWS * COLUMNS;
    let array = filled(turns.world, len, content).into_read_only().block();
    turns.alone(|| {
        let columns: Vec<Vec<usize>> = (0..100)
            .map(|k| {
                let column = k * 379 % COLUMNS;
                let rows = ROWS..2 * ROWS;
                rows.map(|row| row * COLUMNS + column).collect()
            })
            .collect();
        let wrong = Cell::new(0);
        let check = |column: &[usize], values: &[u64]| {
            let right = values[ROWS - 1] == content(column[ROWS - 1]);
            wrong.set(wrong.get() + usize::from(!right));
        };
        let batch = time(batches, 10, || {
            for column in &columns[..10] {
                check(column, &array.batch_load(&column[..]).block());
            }
        });
        let gets = time(batches, columns.len(), || {
            for column in &columns {
                let get = |&index| array.blocking_get(index);
                check(column, &column.iter().map(get).collect::<Vec<u64>>());
            }
        });
        print_wrong(wrong.get());
        print_best(
            "column",
            &[
                ("ReadOnlyArray::batch_load", batch),
                ("loop of ReadOnlyArray::blocking_get", gets),
            ],
        );
    });
}
