//! No mode begins while a request is under way.

use pgas::{GlobalArray, World};

fn main() -> pgas::Result<()> {
    World::run(|world| {
        let mut array = GlobalArray::<u64>::new(world, 10)?;
        let request = array.put_async(9, 1)?;
        let view = array.local()?;
        request.wait()?;
        view.close()
    })
}
