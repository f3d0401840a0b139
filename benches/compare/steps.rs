//! Counts the instructions of a loop by running it one instruction at a time, so that "a few
//! instructions over a plain load" is a figure, where no performance counter can be had too.

use pgas::Result;

/// Instructions in one round of `work(n)`; None where this processor is not known.
pub(crate) fn per_round(mut work: impl FnMut(usize) -> Result<u64>) -> Result<Option<f64>> {
    const ROUNDS: usize = 400;
    // First-time work does not count, nor does what is before and after the loop.
    work(10)?;
    let (few, many) = (count(|| work(ROUNDS)), count(|| work(2 * ROUNDS)));
    let (Some((few, first)), Some((many, second))) = (few, many) else {
        return Ok(None);
    };
    first?;
    second?;
    Ok(Some((many - few) as f64 / ROUNDS as f64))
}

#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "the trap flag and its signal")]
fn count<R>(work: impl FnOnce() -> R) -> Option<(u64, R)> {
    use std::mem::MaybeUninit;
    use std::ptr;
    use std::sync::atomic::{AtomicU64, Ordering};

    static STEPS: AtomicU64 = AtomicU64::new(0);
    extern "C" fn step(_: libc::c_int) {
        STEPS.fetch_add(1, Ordering::Relaxed);
    }

    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    let handler: extern "C" fn(libc::c_int) = step;
    // SAFETY: zero bytes are a sigaction.
    let action = unsafe { action.assume_init_mut() };
    action.sa_sigaction = handler as libc::sighandler_t;
    // SAFETY: the handler only adds to an atomic.
    let set = unsafe { libc::sigaction(libc::SIGTRAP, action, ptr::null_mut()) };
    assert_eq!(set, 0, "sigaction");
    STEPS.store(0, Ordering::Relaxed);
    // SAFETY: sets the trap flag: from here on each instruction of this thread is followed by
    // SIGTRAP, which `step` handles. The stack is as before.
    unsafe { std::arch::asm!("pushfq", "or qword ptr [rsp], 0x100", "popfq") };
    let result = work();
    // SAFETY: clears it.
    unsafe { std::arch::asm!("pushfq", "and qword ptr [rsp], -0x101", "popfq") };
    Some((STEPS.load(Ordering::Relaxed), result))
}

#[cfg(not(target_arch = "x86_64"))]
fn count<R>(_: impl FnOnce() -> R) -> Option<(u64, R)> {
    None
}
