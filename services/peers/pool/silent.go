package pool

import (
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

const (
	// mostConnections of processes, of which each has up to six; less if the process may have few files open.
	mostConnections = 1024
	// mostPending bounds what the server holds for a client that does not read, in bytes.
	mostPending = 8 << 20

	silentTime = 250 * time.Millisecond // that a connection has to say who it is while there are many
	silentLook = 50 * time.Millisecond
)

// dismissSilent ends connections that have not said who they are, while more than half of those that the server takes are open. So whoever
// opens connections without end keeps no process out for long: those are refused at the limit, and come again within 50 ms. It returns when
// the server is closed. (The server itself gives each two seconds, and refuses everybody meanwhile.)
func (s *Server) dismissSilent(most int) {
	tick := time.NewTicker(silentLook)
	defer tick.Stop()
	for {
		select {
		case <-s.done:
			return
		case <-tick.C:
		}
		if s.nats.NumClients() <= most/2 {
			continue
		}
		all, err := s.nats.Connz(&server.ConnzOptions{Username: true, State: server.ConnOpen, Limit: most})
		if err != nil {
			continue
		}
		for _, c := range all.Conns {
			if (c.AuthorizedUser == "" || c.AuthorizedUser == "N/A") && all.Now.Sub(c.Start) > silentTime {
				_ = s.nats.DisconnectClientByID(c.Cid)
			}
		}
	}
}
