package strategy

import (
	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/spec/worth"
)

// text is what is known of a session's text: what its drafters would have guessed of it, and how often the free ones know little.
type text struct {
	of          map[string]report
	begin, base tandem.Position // committed when the first report came: the prompt; committed now
	poor        float64         // rounds in a row in which the free drafters knew little
	runs        float64         // running mean of such rows of rounds that have ended; 0: none has
}

// report is one drafter's hindsight on the first base tokens.
type report struct {
	base      tandem.Position
	hindsight tandem.Hindsight
}

// run notes whether the free drafters know little in a round.
func (x *text) run(poor bool) {
	if poor {
		x.poor++
	} else if x.poor > 0 {
		x.runs, x.poor = average(x.runs, x.poor), 0
	}
}

// stay returns for how many rounds a model that reads the text now is expected to be asked. Then the free drafters know more again, and the
// text grows without the model. A row of such rounds that is longer than usual is expected to go on for as long again.
func (x *text) stay() float64 {
	if x.runs == 0 {
		return worth.Tuned.Rounds
	}
	return max(x.runs, x.poor, 1)
}

// lag returns how many committed tokens a drafter was not told of.
func (x *text) lag(drafter string) int {
	if r, known := x.of[drafter]; known {
		return int(x.base - r.base)
	}
	return 0
}
