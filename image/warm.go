package image

import (
	"github.com/coracle-project/coracle/image/ingest"
	"github.com/coracle-project/coracle/image/manifest"
	"github.com/coracle-project/coracle/image/reference"
)

// warm ends a pull that finds all there: the name names what it is to name, and everything that the
// image consists of is whole and on the disk. Then nothing is written and no disk is synced, which
// would have this pull wait for whatever else the machine is writing. That the image was
// pulled again is written with the next change of the index, or by Close.
func (p *puller) warm(n reference.Name, c *manifest.Content, m *ingest.Meter) (img Image, ok bool) {
	if !p.unpacker.IsWhole(c) || !p.blobs.AllSynced() {
		return Image{}, false
	}
	if img, ok = p.index.PulledAgain(n, c); !ok {
		return Image{}, false
	}
	m.Expect(c.Size())
	m.Add(c.Config.Size)
	for i, l := range m.ExpectLayers(c.Layers) {
		l.Add(c.Layers[i].Size)
		l.Complete()
	}
	return img, true
}
