//! A pointer means nothing in another process.
use pgas::{GlobalArray, World};

fn main() -> pgas::Result<()> {
    World::run(|world| GlobalArray::<String>::new(world, 10)?.close())
}
