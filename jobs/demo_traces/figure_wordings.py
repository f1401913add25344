"""The text of the demo problems that can have a figure; problem.py says how it is read.

A question is complete without its figure. The rules of word_wordings.py hold here too.
"""

RECTANGLE = """
? A rectangular {sheet} is {a} cm long and {b} cm wide. A square with a side of {s} cm is cut off at one corner. What is
  the area of the remaining piece?
? From one corner of a rectangle with sides of {a} cm and {b} cm, a square of side {s} cm is removed. Find the area of
  the shape that is left.
? {name} has a {sheet} in the shape of a rectangle, {a} cm by {b} cm, and cuts a square of {s} cm out of a corner. How
  many square centimetres are left?
- The area that is left is the area of the whole rectangle minus the area of the square.
| The remaining piece is a rectangle with one corner missing, so we subtract the square from the rectangle.
- The area of the rectangle is its length times its width: {a} × {b} = [whole] square centimetres.
| For the whole rectangle, length times width gives {a} × {b} = [whole] square centimetres.
- All sides of the square are {s} cm long, so its area is {s} × {s} = [hole] square centimetres.
| The missing square has an area of {s} × {s} = [hole] square centimetres, since its sides are equal.
- Subtract the square from the rectangle: {whole} - {hole} = {left} square centimetres.
| Taking the square away leaves {whole} - {hole} = {left} square centimetres.
- Let us confirm this in another way, by cutting the piece into two smaller rectangles along the edge of the square.
| For a check, the same piece can be split into two rectangles, one beside the missing square and one below it.
- The strip beside the square is {a} - {s} = [rest] cm long and as wide as the square, {s} cm.
| Beside the square there is a rectangle of width {s} cm. Its length is {a} - {s} = [rest] cm.
- The area of that strip is {rest} × {s} = [strip] square centimetres.
| This first part therefore measures {rest} × {s} = [strip] square centimetres.
- The other rectangle keeps the full length of {a} cm. Its width is {b} - {s} = [low] cm.
| What lies below is {a} cm long, and its width is {b} - {s} = [low] cm.
~ The area of this second part is {a} × {low} = {lower} square centimetres.
- Both parts together have an area of {strip} + {a} × {low} = {left}, the same as before, so {left} square centimetres
  are left.
| Adding both parts, {strip} + {a} × {low} = {left} square centimetres, which agrees. The remaining area is {left}
  square centimetres.
! [left] cm²
"""

TRIANGLE = """
? The two legs of a right triangle are {a} cm and {b} cm long. What is the perimeter of the triangle?
? In triangle ABC the angle at C is a right angle, with AC = {a} cm and BC = {b} cm. Find the perimeter.
? {name} bends a wire into a right triangle. The sides next to the right angle measure {a} cm and {b} cm. How long is
  the wire?
- The perimeter is the sum of all three sides. Two are given, and the third one is the hypotenuse.
| We need all three sides to find the perimeter. The side opposite the right angle is still missing.
- In a right triangle, the square of the hypotenuse equals the sum of the squares of the legs.
| The missing side follows from the theorem of Pythagoras: add the squares of the legs and take the square root.
- The square of the first leg is {a} × {a} = [aa].
| Square the first of the legs: {a} × {a} = [aa].
- The square of the second leg is {b} × {b} = [bb].
| Square the other leg too: {b} × {b} = [bb].
- The sum of both squares is {aa} + {bb} = [cc].
| Adding the squares gives {aa} + {bb} = [cc], the square of the hypotenuse.
- Since {c} × {c} = {cc}, the hypotenuse is {c} cm long.
| The square root of {cc} is {c}, because {c} × {c} = {cc}. So the third side measures {c} cm.
- The two legs together measure {a} + {b} = [legs] cm.
| Now add the sides, first the two legs: {a} + {b} = [legs] cm.
~ The hypotenuse is longer than either leg and shorter than both of them in a row, as it must be in a triangle.
- With the hypotenuse, the perimeter is {legs} + {c} = {total} cm.
| Adding the third side gives {legs} + {c} = {total} cm for the way around the triangle.
- So the perimeter of the triangle is {total} cm.
| All three sides together are {total} cm long.
! [total] cm
"""

SECTOR = """
? A circle has a radius of {r} cm. What is the area of a sector with a central angle of {angle} degrees? Use {pi} for π.
? A slice is cut from a round {cake} with a radius of {r} cm. The angle at the tip of the slice is {angle} degrees. Find
  the area of the slice, taking π as {pi}.
? A garden sprinkler reaches {r} m far and turns through an angle of {angle} degrees. How large is the area that it
  waters? Take {pi} for π.
- A sector is a part of a full circle. Its share of the circle is its angle divided by the 360 degrees of a full turn.
| The shape in question is a sector, and its area is in proportion to its angle. A full circle has 360 degrees.
- The share is {angle} ÷ 360 = [share] of the circle.
| Divide the angle by a full turn: {angle} ÷ 360 = [share], the share of the circle that belongs to the sector.
- Next we need the area of the full circle, which is π times the square of the radius.
| The whole circle has an area of π times the radius times the radius.
- The square of the radius is {r} × {r} = [rr].
| With a radius of {r}, the square is {r} × {r} = [rr].
- With {pi} for π, the area of the circle is {pi} × {rr} = [disc] square units.
| Multiply by π to get the full circle: {pi} × {rr} = [disc].
- The sector has the share {share} of this area: {share} × {disc} = {area}.
| Take the share {share} of the circle to find the sector, {share} × {disc} = {area} square units.
~ The rest of the circle spans 360 - {angle} = {other} degrees and does not belong to the sector.
- To check, divide the sector by its share again: {area} ÷ {share} = {disc}, which is the full circle.
| Going back the other way, {area} ÷ {share} = {disc} is the area of the full circle, so the result is consistent.
- So the area of the sector is {area} square units.
| The area we were looking for is {area} square units.
! [area]
"""

CHART = """
? A bar chart shows how many {things} were {done} on each day: {l1} {v1}, {l2} {v2}, {l3} {v3}, {l4} {v4} and {l5} {v5}.
  By how much is the best day above the average of the five days?
? The bars of a chart give the number of {things} {done} from {l1} to {l5}: {l1} {v1}, {l2} {v2}, {l3} {v3}, {l4} {v4},
  {l5} {v5}. How much higher is the tallest bar than the mean of all bars?
? {name} draws a bar chart of the {things} {done} in one week. The bars are {l1} {v1}, {l2} {v2}, {l3} {v3}, {l4} {v4}
  and {l5} {v5}. What is the difference between the highest bar and the average?
- Read the heights of the bars: {l1} {v1}, {l2} {v2}, {l3} {v3}, {l4} {v4} and {l5} {v5}.
| The chart has five bars. From {l1} to {l5} their heights are {v1}, {v2}, {v3}, {v4} and {v5}.
- The average is the sum of the five values divided by five, so we add them up first.
| For the average we need the total of all five days, which is then divided by the number of days.
- The first three bars add up to {v1} + {v2} + {v3} = [p3].
| Start with the first three days: {v1} + {v2} + {v3} = [p3].
- With the last two bars the total is {p3} + {v4} + {v5} = [total].
| Adding {l4} and {l5} makes {p3} + {v4} + {v5} = [total] {things} in all.
- The average is therefore {total} ÷ 5 = [mean] {things} a day.
| Spread evenly over the five days, this is {total} ÷ 5 = [mean] {things} a day.
- The tallest bar is the one for {best}, with {top} {things}.
| Comparing the five heights, {best} has the largest value, which is {top}.
~ The smallest value is {low}. It is not needed here, since the question is about the tallest bar.
- The difference between the tallest bar and the average is {top} - {mean} = {above}.
| Subtract the average from the largest value: {top} - {mean} = {above}.
- As a check, {mean} + {above} = {top}, the height of the bar for {best}.
| Adding the difference back to the average gives {mean} + {above} = {top}, the value of {best}.
- So {best} is {above} {things} above the average.
| The best day, {best}, is above the average by {above} {things}.
! [above]
"""
