//! Bytes from elsewhere cannot be trusted to be an `Option`.
use pgas::{GlobalArray, World};

fn main() -> pgas::Result<()> {
    World::run(|world| GlobalArray::<Option<u32>>::new(world, 10)?.close())
}
