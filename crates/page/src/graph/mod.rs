//! A graph whose edges go one way, drawn by layers from left to right.
//!
//! `layout.rs` decides in which layer and row each node stands; this draws it.

mod layout;

use maud::{Markup, html};

use self::layout::Layout;

/// What has more nodes is not drawn.
const MOST: usize = 200;

/// Sizes in pixels.
const HEIGHT: f64 = 42.0;
const ROW_GAP: f64 = 14.0;
const LAYER_GAP: f64 = 46.0;
const MARGIN: f64 = 6.0;
/// The way of an edge that passes a layer.
const PASS: f64 = 10.0;

/// The most characters of the name and of the note of a node.
const NAME: usize = 30;
const NOTE: usize = 42;

/// A node of a graph.
#[derive(Debug, Clone, Default)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// What it is, or has done, in a few words.
    pub note: String,
    /// The class of its colour.
    pub class: &'static str,
}

/// A graph of `nodes`; an edge is the numbers of two of them. Nothing if there are too few of them, or too many.
pub fn graph(label: &str, nodes: &[Node], edges: &[(usize, usize)]) -> Option<Markup> {
    if nodes.len() < 2 || nodes.len() > MOST {
        return None;
    }
    let layout = Layout::of(nodes.len(), edges);
    let drawing = Drawing::of(nodes, &layout);
    // For those who cannot see it.
    let named = |way: &Vec<usize>| Some(format!("{} to {}", nodes[*way.first()?].name, nodes[*way.last()?].name));
    let in_words: Vec<String> = layout.ways.iter().filter_map(named).collect();
    Some(html! {
        svg role="img" aria-label=(label) width=(drawing.width) height=(drawing.height)
            viewBox={ "0 0 " (drawing.width) " " (drawing.height) } xmlns="http://www.w3.org/2000/svg" {
            title { (label) }
            desc { (in_words.join("; ")) }
            @for way in &layout.ways { (drawing.edge(way)) }
            @for (number, node) in nodes.iter().enumerate() { (drawing.node(number, node)) }
        }
    })
}

/// Where everything is.
struct Drawing {
    width: f64,
    height: f64,
    /// The left and right side of each layer.
    layers: Vec<(f64, f64)>,
    /// The layer and the middle of each place: first the nodes, then the places that edges pass.
    places: Vec<(usize, f64)>,
}

impl Drawing {
    fn of(nodes: &[Node], layout: &Layout) -> Self {
        let is_node = |place: &usize| *place < nodes.len();
        let height_of = |place: &usize| if is_node(place) { HEIGHT } else { PASS };
        let mut layers = Vec::new();
        let mut left = MARGIN;
        for places in &layout.layers {
            let widest = places.iter().filter(|place| is_node(place)).map(|place| width(&nodes[*place]));
            let right = left + widest.fold(40.0, f64::max);
            layers.push((left, right));
            left = right + LAYER_GAP;
        }
        let total = |places: &Vec<usize>| {
            places.iter().map(height_of).sum::<f64>() + ROW_GAP * places.len().saturating_sub(1) as f64
        };
        let highest = layout.layers.iter().map(total).fold(0.0, f64::max);
        let mut middles = vec![(0, 0.0); layout.layers.iter().map(Vec::len).sum()];
        for (layer, places) in layout.layers.iter().enumerate() {
            let mut top = MARGIN + (highest - total(places)) / 2.0;
            for place in places {
                middles[*place] = (layer, (top + height_of(place) / 2.0).round());
                top += height_of(place) + ROW_GAP;
            }
        }
        let (width, height) = (left - LAYER_GAP + MARGIN, highest + 2.0 * MARGIN);
        Drawing { width: width.ceil(), height: height.ceil(), layers, places: middles }
    }

    fn node(&self, number: usize, node: &Node) -> Markup {
        let (layer, middle) = self.places[number];
        let (left, right) = self.layers[layer];
        html! {
            g {
                title { (node.name) ": " (node.note) }
                rect class={ "box " (node.class) } x=(left) y=(middle - HEIGHT / 2.0) width=(right - left)
                    height=(HEIGHT) rx="5" {}
                text.strong x=(left + 10.0) y=(middle - 3.0) { (cut(&node.name, NAME)) }
                text.small x=(left + 10.0) y=(middle + 13.0) { (cut(&node.note, NOTE)) }
            }
        }
    }

    /// An edge by its way, the places from its beginning to its end.
    fn edge(&self, way: &[usize]) -> Markup {
        let mut path = String::new();
        let mut end = (0.0, 0.0);
        for pair in way.windows(2) {
            let [(from, from_middle), (to, to_middle)] = [self.places[pair[0]], self.places[pair[1]]];
            let (begin, right) = (self.layers[from].1, self.layers[to].0);
            let half = (begin + right) / 2.0;
            path.push_str(if path.is_empty() { "M" } else { " L" });
            let bend = format!("{half} {from_middle} {half} {to_middle}");
            path.push_str(&format!("{begin} {from_middle} C{bend} {right} {to_middle}"));
            end = (right, to_middle);
        }
        let (x, y) = end;
        let tip = format!("M{x} {y} L{} {} L{} {} Z", x - 7.0, y - 4.0, x - 7.0, y + 4.0);
        html! { path.edge d=(path) {} path.tip d=(tip) {} }
    }
}

/// How wide a node is. The font is not known: wide characters take the place of two.
fn width(node: &Node) -> f64 {
    let wide = |text: String| text.chars().map(|one| if one < '\u{1100}' { 1.0 } else { 2.0 }).sum::<f64>();
    (7.6 * wide(cut(&node.name, NAME))).max(6.3 * wide(cut(&node.note, NOTE))).ceil() + 20.0
}

/// The beginning of a text that has more characters than `most`.
fn cut(text: &str, most: usize) -> String {
    match text.chars().nth(most) {
        Some(_) => text.chars().take(most - 1).chain(['…']).collect(),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(count: usize) -> Vec<Node> {
        (0..count).map(|number| Node { name: format!("n{number}"), ..Node::default() }).collect()
    }

    #[test]
    fn a_graph_has_all_nodes_and_edges_and_says_what_it_is() {
        let svg = graph("the steps", &nodes(4), &[(0, 1), (1, 2), (0, 2), (2, 3)]).expect("a drawing").0;
        assert_eq!((svg.matches("<rect").count(), svg.matches("class=\"edge\"").count()), (4, 4), "{svg}");
        assert!(svg.contains("<desc>n0 to n1; n1 to n2; n0 to n2; n2 to n3</desc>"), "{svg}");
        assert!(svg.contains("<title>the steps</title>") && svg.contains(">n3</text>"), "{svg}");
        assert!(graph("one", &nodes(1), &[]).is_none() && graph("many", &nodes(MOST + 1), &[]).is_none());
    }

    #[test]
    fn no_two_nodes_of_a_layer_overlap() {
        let edges: Vec<(usize, usize)> = (1..50).map(|to| (to / 4, to)).chain([(0, 49)]).collect();
        let layout = Layout::of(50, &edges);
        let drawing = Drawing::of(&nodes(50), &layout);
        for one in 0..50 {
            for other in 0..one {
                let ((layer, y), (beside, other_y)) = (drawing.places[one], drawing.places[other]);
                assert!(layer != beside || (y - other_y).abs() >= HEIGHT, "{one} and {other}");
            }
        }
    }

    #[test]
    fn long_names_are_cut() {
        assert_eq!(cut("short", 5), "short");
        assert_eq!(cut("too long", 5), "too …");
    }
}
