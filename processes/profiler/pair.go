package profiler

import (
	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/device"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/processes/placement"
	"github.com/tandem-llm/tandem/processes/profile"
	"github.com/tandem-llm/tandem/processes/roles"
)

// mostBurden keeps the contention finite where passes of a draft stop everything else.
const mostBurden = 0.9

// pair keeps what a draft on a device brings the target as it was measured first, by its chains on the texts: nothing for a draft whose
// chains were not judged.
func (p *profiler) pair(m *engine.Model, path string, at device.Spec) error {
	if len(p.measured) == 0 {
		return nil // the target fits on none of the devices
	}
	target := p.measured[0]
	x := profile.Paired{Identities: [2]tandem.Identity{p.identity, m.Names().Identity}, Verify: profile.Points(target.costs),
		Passes: profile.Points(p.costs("draft", m))}
	for _, t := range p.latest {
		if t.Name == roles.ModelName(path) && len(t.Depths) > 0 {
			x.Texts = append(x.Texts, profile.PairedText{Text: t.Text.Name, Depths: t.Depths})
		}
	}
	if len(x.Texts) == 0 || len(x.Verify) == 0 || len(x.Passes) == 0 {
		return nil
	}
	var err error
	if x.Target, err = placement.FileOf(p.Config.Target, p.KVType); err != nil {
		return err
	}
	if x.Draft, err = placement.FileOf(path, p.KVType); err != nil {
		return err
	}
	if target.at.Overlaps(at) {
		share, err := p.burden(m, target.at)
		if err != nil {
			return err
		}
		x.Contention = 1 / (1 - min(share, mostBurden))
	}
	work := m.Passes().Work()
	head := float64(work.HeadInt + work.HeadFloat)
	x.Judge(profileDepth, head/(head+float64(work.IntMACs+work.FloatMACs)), m.Config().Vocab)
	p.Plan.Match(x)
	p.pairs = append(p.pairs, x)
	return nil
}
