package skew

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/weir-dev/weir/internal/policy"
	"github.com/weir-dev/weir/internal/redisstore"
)

// asOf is a row of a version with another revision.
func (c *corpus) asOf(t *testing.T, epoch string, n int64) policy.Row {
	t.Helper()
	row, skipped, err := policy.DecodeRow(c.row)
	if err != nil || len(skipped) > 0 {
		t.Fatal(skipped, err)
	}
	row.Revision = policy.Revision{Epoch: epoch, N: n}
	return row
}

// A controller of today reads all that an old controller and old members wrote, and goes on from there.
func TestNewControllerOldTable(t *testing.T) {
	for _, c := range versions(t) {
		t.Run(c.name, func(t *testing.T) {
			_, client := server(t)
			for _, name := range []string{"claim", "publish", "replicas", "heartbeat"} {
				c.mustDo(t, client, name)
			}
			ctx := t.Context()
			next := redisstore.NewTable(client, table, installation)
			if owner, err := next.Claim(ctx, "4900"); err != nil || owner != installation {
				t.Fatalf("owner %q (%v)", owner, err)
			}
			p, _, err := next.Read(ctx, checkout)
			if err != nil {
				t.Fatal(err)
			}
			if string(p.Row) != string(c.row) || p.Epoch != epoch || p.Replicas == nil || p.Replicas.N != 3 {
				t.Errorf("read %s, epoch %s, replicas %+v", p.Row, p.Epoch, p.Replicas)
			}
			if len(p.Members) != 1 || p.Members[0].Member != oldMember || p.Members[0].Library != c.name ||
				p.Members[0].Revision != (policy.Revision{Epoch: epoch, N: 7}) {
				t.Errorf("members %+v", p.Members)
			}
			if refusal, err := next.Publish(ctx, checkout, c.asOf(t, "4900", 1)); err != nil || refusal != policy.Accepted {
				t.Fatalf("the new controller's row: %q (%v)", refusal, err)
			}
			// The old one, which was paused meanwhile, takes nothing back.
			for _, name := range []string{"publish", "replicas"} {
				if reply := c.mustDo(t, client, name); reply != string(policy.RefusedRevision) {
					t.Errorf("%s of the old controller: %q, want it refused", name, reply)
				}
			}
			// It keeps the table for both of them, and does not set the epoch back.
			c.mustDo(t, client, "claim")
			var record map[string]string
			if err := json.Unmarshal([]byte(client.Get(ctx, "weir:"+table+":owner").Val()), &record); err != nil || record["epoch"] != "4900" {
				t.Errorf("the owner's record is %v (%v)", record, err)
			}
		})
	}
}

// Members of two versions are one set: ranks and counts are each other's, and each leaves alone.
func TestMembersOfBothVersions(t *testing.T) {
	for _, c := range versions(t) {
		t.Run(c.name, func(t *testing.T) {
			_, client := server(t)
			ctx := t.Context()
			c.mustDo(t, client, "heartbeat")
			member := redisstore.NewMember(client, table, checkout)
			report := policy.Report{Member: "checkout-new/1", Pod: "checkout-new", Library: "now", Features: policy.Features()}
			standing, err := member.Heartbeat(ctx, report, 5*time.Second)
			if err != nil || standing.Count != 2 || standing.Rank != 1 {
				t.Fatalf("%+v (%v), want the second of two", standing, err)
			}
			reply, ok := c.mustDo(t, client, "heartbeat").([]any)
			if !ok || fmt.Sprint(reply[:2]) != "[0 2]" || fmt.Sprint(reply[2]) != fmt.Sprint(standing.Version) {
				t.Errorf("the old member hears %v, want rank 0 of 2 and version %d", reply, standing.Version)
			}
			observed, ok := c.mustDo(t, client, "observe").([]any)
			if !ok || len(observed) != 8 || !slices.Contains(observed, any(report.Member)) {
				t.Errorf("the old controller sees %v", observed)
			}
			c.mustDo(t, client, "leave")
			if standing, err = member.Heartbeat(ctx, report, 5*time.Second); err != nil || standing.Count != 1 || standing.Rank != 0 {
				t.Errorf("after the old one left: %+v (%v)", standing, err)
			}
		})
	}
}

// A row of a later version stays, whoever comes with an older one: a controller of today or one of before.
func TestOldControllersLeaveANewerRowAlone(t *testing.T) {
	for _, c := range versions(t) {
		t.Run(c.name, func(t *testing.T) {
			_, client := server(t)
			ctx := t.Context()
			c.mustDo(t, client, "claim")
			newer := `{"v":2,"owner":"` + installation + `","revision":{"epoch":"4000","n":1},"workload":"` + checkout.String() + `"}`
			if err := client.Set(ctx, key("row"), newer, 0).Err(); err != nil {
				t.Fatal(err)
			}
			if reply := c.mustDo(t, client, "publish"); reply != string(policy.RefusedVersion) {
				t.Errorf("the old controller's row: %q, want %q", reply, policy.RefusedVersion)
			}
			today := redisstore.NewTable(client, table, installation)
			if _, err := today.Claim(ctx, "4900"); err != nil {
				t.Fatal(err)
			}
			if refusal, err := today.Publish(ctx, checkout, c.asOf(t, "4900", 1)); err != nil || refusal != policy.RefusedVersion {
				t.Errorf("today's row: %q (%v), want %q", refusal, err, policy.RefusedVersion)
			}
			p, _, err := today.Read(ctx, checkout)
			if err != nil {
				t.Fatal(err)
			}
			if _, _, err := policy.DecodeRow(p.Row); !errors.Is(err, policy.ErrNewerVersion) || string(p.Row) != newer {
				t.Errorf("the row is %s (%v)", p.Row, err)
			}
		})
	}
}

// What a later member says of itself is read as far as it is understood.
func TestOldControllerNewReport(t *testing.T) {
	r, err := policy.DecodeReport("checkout-7d4b9c6f5-new01/1", future(t, "report.json"))
	if err != nil {
		t.Fatal(err)
	}
	if r.Pod != "checkout-7d4b9c6f5-new01" || r.Library != "v9.9.9" || r.Revision != (policy.Revision{Epoch: epoch, N: 7}) || len(r.Features) != 2 {
		t.Errorf("%+v", r)
	}
}
