//! In which layer and row each node of a graph stands: behind all that it comes from, and near these, so that few edges
//! cross. The method is that of Sugiyama: longest paths give the layers, barycentres the order in them.

/// How often the order is improved.
const SWEEPS: usize = 6;

/// Where the nodes of a graph stand. A place is a node, by its number, or, from the number of nodes on, where an edge
/// passes a layer.
#[derive(Debug)]
pub struct Layout {
    /// The places of each layer, from top to bottom.
    pub layers: Vec<Vec<usize>>,
    /// The way of each edge: the places from its beginning to its end, one for each layer.
    pub ways: Vec<Vec<usize>>,
}

impl Layout {
    /// The layout of `nodes` nodes with these edges.
    pub fn of(nodes: usize, edges: &[(usize, usize)]) -> Self {
        let depths = depths(nodes, edges);
        let mut layers: Vec<Vec<usize>> = vec![Vec::new(); depths.iter().max().map_or(0, |deepest| deepest + 1)];
        depths.iter().enumerate().for_each(|(node, depth)| layers[*depth].push(node));
        let mut places = nodes;
        let mut ways = Vec::new();
        // An edge of a ring would lead back, and cannot be drawn.
        let forward = edges.iter().filter(|(from, to)| *from < nodes && *to < nodes && depths[*from] < depths[*to]);
        for (from, to) in forward {
            let mut way = vec![*from];
            for layer in &mut layers[depths[*from] + 1..depths[*to]] {
                layer.push(places);
                way.push(places);
                places += 1;
            }
            way.push(*to);
            ways.push(way);
        }
        let mut layout = Layout { layers, ways };
        for sweep in 0..SWEEPS {
            layout.sweep(places, sweep % 2 == 0);
        }
        layout
    }

    /// Orders each layer by where the places of the one before it are that its own are tied to; if not `forward`, of
    /// the one behind it.
    fn sweep(&mut self, places: usize, forward: bool) {
        let mut tied: Vec<Vec<usize>> = vec![Vec::new(); places];
        for pair in self.ways.iter().flat_map(|way| way.windows(2)) {
            let (of, to) = if forward { (pair[1], pair[0]) } else { (pair[0], pair[1]) };
            tied[of].push(to);
        }
        let mut rows = vec![0.0; places];
        let count = self.layers.len();
        for number in (0..count).map(|number| if forward { number } else { count - 1 - number }) {
            let layer = &mut self.layers[number];
            // Layers of different lengths are centred: the middle of each is 0.
            let half = layer.len() as f64 / 2.0;
            let middle = |place: &usize, row: usize| match tied[*place].len() {
                0 => row as f64 + 0.5 - half,
                ties => tied[*place].iter().map(|other| rows[*other]).sum::<f64>() / ties as f64,
            };
            let mut ordered: Vec<(f64, usize)> =
                layer.iter().enumerate().map(|(row, place)| (middle(place, row), *place)).collect();
            ordered.sort_by(|one, other| one.0.total_cmp(&other.0));
            *layer = ordered.into_iter().map(|(_, place)| place).collect();
            layer.iter().enumerate().for_each(|(row, place)| rows[*place] = row as f64 + 0.5 - half);
        }
    }
}

/// The layer of each node: the length of the longest path to it.
fn depths(nodes: usize, edges: &[(usize, usize)]) -> Vec<usize> {
    let mut depths = vec![0; nodes];
    // No path is longer than that, unless there is a ring, from which damaged reports are not safe.
    for _ in 0..nodes {
        let mut changed = false;
        for (from, to) in edges.iter().filter(|(from, to)| *from < nodes && *to < nodes && from != to) {
            if depths[*to] <= depths[*from] && depths[*from] + 1 < nodes {
                depths[*to] = depths[*from] + 1;
                changed = true;
            }
        }
        if !changed {
            break;
        }
    }
    depths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_node_stands_behind_all_that_it_comes_from() {
        let edges = [(0, 1), (1, 2), (0, 2), (3, 2), (2, 4)];
        let layout = Layout::of(5, &edges);
        assert_eq!(depths(5, &edges), [0, 1, 2, 0, 3]);
        // Two edges pass a layer.
        assert_eq!(layout.ways.iter().map(Vec::len).collect::<Vec<_>>(), [2, 2, 3, 3, 2]);
        assert_eq!(layout.layers.iter().map(Vec::len).collect::<Vec<_>>(), [2, 3, 1, 1]);
    }

    #[test]
    fn edges_that_need_not_cross_do_not() {
        // Two chains whose ends are named in the other order.
        let layout = Layout::of(4, &[(0, 3), (1, 2)]);
        let rows: Vec<(usize, usize)> = layout.ways.iter().map(|way| (way[0], way[1])).collect();
        let row = |place: usize| layout.layers.iter().find_map(|layer| layer.iter().position(|one| *one == place));
        assert_eq!(row(rows[0].0).cmp(&row(rows[1].0)), row(rows[0].1).cmp(&row(rows[1].1)), "{layout:?}");
    }

    #[test]
    fn a_ring_or_an_unknown_node_does_no_harm() {
        let layout = Layout::of(3, &[(0, 1), (1, 2), (2, 0), (1, 1), (0, 9)]);
        assert!(layout.layers.iter().map(Vec::len).sum::<usize>() >= 3, "{layout:?}");
        assert!(Layout::of(0, &[]).layers.is_empty());
    }
}
