"""The text of the demo problems told in words only; problem.py says how it is read.

The numbers of a question come in the same order in all its wordings. Arithmetic is written without units, so that a
reader can be a program.
"""

DISCOUNT = """
? A {item} costs ${price}. In a sale its price is reduced by {off}%, and a sales tax of {tax}% is then added to the
  reduced price. How much does the customer pay?
? The regular price of a {item} is ${price}. A shop takes {off}% off and then adds {tax}% tax to what is left. What is
  the final price?
? {name} buys a {item} marked ${price} with a coupon for {off}% off. The tax of {tax}% applies after the coupon. What
  amount is on the receipt?
- We need the final price of the {item}. First take off the discount, then add the tax to what is left.
| There are two changes to the price, one after the other: a discount first, then a tax on the reduced price.
| The price of the {item} goes down by {off}% and then up by {tax}%, and the second change starts from the lower price.
- Write the discount of {off}% as a decimal: {off} ÷ 100 = {off_rate}.
| A discount of {off}% means {off} parts out of a hundred, which is {off} ÷ 100 = {off_rate}.
- The discount on a price of ${price} is {off_rate} × {price} = [cut], so $[cut] is taken off.
| Multiply the price by this rate to find the saving: {price} × {off_rate} = [cut] dollars.
- Subtract the discount from the original price: {price} - {cut} = [sale] dollars.
| Taking ${cut} off the regular price leaves {price} - {cut} = [sale] dollars.
- So the price before tax is ${sale}. The tax is charged on this amount, not on the original ${price}.
| The tax comes after the discount, so it has to be worked out from ${sale} and not from ${price}.
- The tax rate of {tax}% as a decimal is {tax} ÷ 100 = {tax_rate}.
| In the same way, the tax of {tax}% is {tax} ÷ 100 = {tax_rate} as a decimal.
- The tax on ${sale} is {tax_rate} × {sale} = [extra] dollars.
| Multiply to find the tax: {sale} × {tax_rate} = [extra], so the tax is $[extra].
- Add the tax to the reduced price: {sale} + {extra} = {total}.
| The amount to pay is the reduced price plus the tax, {sale} + {extra} = {total} dollars.
~ As a check, the customer still pays 100 - {off} = {kept} percent of the price before tax, and
  {kept_rate} × {price} = {sale}, as found above.
- Therefore the customer pays ${total} for the {item}.
| The price of the {item}, with discount and tax, comes to ${total}.
! $[total]
"""

EQUATION = """
? Solve the equation {a}x + {b} = {c}x + {d} for x.
? For which number x do {a}x + {b} and {c}x + {d} have the same value?
? Two taxi firms charge {a}x + {b} and {c}x + {d} dollars for a ride of x kilometres. For which x do both cost the same?
- The unknown x is on both sides of {a}x + {b} = {c}x + {d}. We collect the terms with x on the left and the plain
  numbers on the right.
| Set the two expressions equal, {a}x + {b} = {c}x + {d}. The aim is to leave x alone on one side.
- Subtract {c}x from both sides, so that no x is left on the right. The coefficient on the left becomes
  {a} - {c} = [e].
| Taking {c}x away from both sides removes x on the right, and {a} - {c} = [e] times x stays on the left.
~ At this point the equation reads {e}x + {b} = {d}, which has x on one side only.
- Next subtract {b} from both sides to clear the constant on the left. On the right this gives {d} - {b} = [f].
| The constant {b} is in the way, so take it off both sides. The right side turns into {d} - {b} = [f].
- The equation has become {e}x = {f}, which says that {e} times the unknown number is {f}.
| What is left is {e}x = {f}: a number multiplied by {e} gives {f}.
- Divide both sides by {e} to get x alone: {f} ÷ {e} = {x}, so x is {x}.
| Undo the multiplication with a division, {f} ÷ {e} = {x}. Hence x is {x}.
- To check, put {x} in the place of x on the left side: {a} × {x} + {b} = [both].
| Let us test this value. The left side is then {a} × {x} + {b} = [both].
- Do the same on the right side: {c} × {x} + {d} = {both}.
| The right side with the same value is {c} × {x} + {d} = {both}.
- Both sides come to {both}, so the solution of the equation is x = {x}.
| The two sides agree at {both}, and therefore x = {x}.
! x = [x]
"""

AVERAGE = """
? {name} scored {s1}, {s2}, {s3}, {s4} and {s5} points in five tests. How many points are needed in the sixth test to
  make the mean of all six tests {mean}?
? The first five rounds of a quiz brought {name}'s team {s1}, {s2}, {s3}, {s4} and {s5} points. What must the team score
  in round six so that its average over the six rounds is {mean}?
? A bakery sold {s1}, {s2}, {s3}, {s4} and {s5} loaves on the first five days of a week. How many loaves must it sell on
  the sixth day for a daily average of {mean} over the six days?
- We are looking for the sixth value that brings the mean of all six values to {mean}.
| Five values are known and one is missing. The missing one has to make the average of the six equal to {mean}.
- A mean is a sum divided by a count, so the sum that is needed is the mean multiplied by the count.
| Since the mean is the total divided by how many values there are, we can find the total by multiplying back.
- With six values and a mean of {mean}, the total has to be 6 × {mean} = [need].
| Six values with an average of {mean} must add up to {mean} × 6 = [need].
- Now add the known values. The first two give {s1} + {s2} = [p2].
| Next we need the sum so far. Start with the first two values: {s1} + {s2} = [p2].
- Adding the third value gives {p2} + {s3} = [p3].
| Together with the third one this makes {p2} + {s3} = [p3].
- With the fourth and the fifth value the sum becomes {p3} + {s4} + {s5} = [p5].
| Put in the last two as well: {p3} + {s4} + {s5} = [p5] is the total of the five known values.
~ The average of these five alone is {p5} ÷ 5 = {now}, so the sixth value has to move it to {mean}.
- The missing value is the difference between the total needed and the total so far: {need} - {p5} = {last}.
| What is still missing is {need} - {p5} = {last}, and the sixth value has to supply all of it.
~ Check: ({p5} + {last}) ÷ 6 = {mean}, which is the mean that was asked for.
- So the sixth value has to be {last}.
| Hence {last} is needed the sixth time to reach a mean of {mean}.
! [last]
"""

WORK_RATE = """
? {one} alone can {job} in {a} hours, and {two} alone needs {b} hours for it. How long do they need together?
? Working alone, {one} takes {a} hours to {job} while {two} takes {b} hours. If both work at the same time, after how
  many hours is the job done?
? It takes {one} {a} hours to {job}. For {two} the same job is a matter of {b} hours. In how many hours do they finish
  it side by side?
- The times cannot simply be added or averaged. What adds up when two work together is the amount done in each hour.
| When {one} and {two} work side by side, their rates add up, so we first find out what each does in an hour.
- Divide the whole job into {whole} equal parts. This number is convenient because both {a} and {b} divide it.
| Think of the job as {whole} equal parts, since {whole} is a common multiple of {a} and {b}.
- Alone, {one} needs {a} hours for the {whole} parts, which makes {whole} ÷ {a} = [rate_a] parts in an hour.
| The rate of {one} is {whole} ÷ {a} = [rate_a] parts an hour.
- Alone, {two} needs {b} hours, which makes {whole} ÷ {b} = [rate_b] parts in an hour.
| In the same way, the rate of {two} is {whole} ÷ {b} = [rate_b] parts an hour.
- Together they complete {rate_a} + {rate_b} = [rate] parts in an hour.
| Adding the two rates gives {rate_a} + {rate_b} = [rate] parts an hour for both.
- At this rate, all {whole} parts take {whole} ÷ {rate} = {hours} hours.
| The time is the amount of work divided by the rate, which is {whole} ÷ {rate} = {hours} hours.
~ In {hours} hours, {one} does {rate_a} × {hours} = {done_a} parts and {two} does {rate_b} × {hours} = {done_b} parts.
- The result makes sense: {hours} hours is less than the {quick} hours that the faster one needs alone.
| This is plausible, because with help the job must take less time than the {quick} hours of the faster one alone.
- So {one} and {two} need {hours} hours together.
| Working together, they finish after {hours} hours.
! [hours] hours
"""

SPEED = """
? A {vehicle} travels at {v1} km/h for {t1} hours and then at {v2} km/h for {t2} hours. What is its average speed over
  the whole trip?
? {name} drives a {vehicle} at a steady {v1} km/h for {t1} hours. Then the road changes and the speed is {v2} km/h for
  another {t2} hours. Find the average speed of the journey.
? The first part of a {vehicle} trip is covered at {v1} km/h and lasts {t1} hours, the second part at {v2} km/h lasts
  {t2} hours. How fast is the {vehicle} on average?
- The average speed is the whole distance divided by the whole time, so we need both of these.
| To get an average speed, divide the total distance by the total time. Let us find the two totals.
- In the first part the {vehicle} covers {v1} × {t1} = [d1] kilometres, because distance is speed times time.
| Distance is speed times time, so the first part is {v1} × {t1} = [d1] kilometres long.
- In the second part it covers {v2} × {t2} = [d2] kilometres.
| The second part is {v2} × {t2} = [d2] kilometres long.
- The whole distance is the sum of both parts: {d1} + {d2} = [d] kilometres.
| Adding the two parts gives a distance of {d1} + {d2} = [d] kilometres for the trip.
- The whole time is {t1} + {t2} = [t] hours.
| The {vehicle} is on its way for {t1} + {t2} = [t] hours in total.
~ Note that the mean of the two speeds, ({v1} + {v2}) ÷ 2 = {naive}, is not the answer, because the two parts do not
  last equally long.
- Divide the distance by the time: {d} ÷ {t} = {v}, so the average speed is {v} km/h.
| The average speed follows by division, {d} ÷ {t} = {v} kilometres in each hour.
- This value lies between {v2} and {v1} and nearer to {near}, the speed that was kept up for longer.
| The value is reasonable. It is between the two speeds, and closer to {near} km/h, which lasted longer.
~ Check: at a constant {v} km/h, the {vehicle} would cover {v} × {t} = {d} kilometres in the same time.
- The average speed of the {vehicle} over the whole trip is {v} km/h.
| Thus the {vehicle} travels at {v} km/h on average.
! [v] km/h
"""

RATIO = """
? {one}, {two} and {three} share ${total} in the ratio {a} : {b} : {c}. How much more does {three} get than {one}?
? A prize of ${total} is split between {one}, {two} and {three} in the ratio {a} : {b} : {c}. By how many dollars is the
  share of {three} larger than that of {one}?
? {one}, {two} and {three} earn ${total} with a car wash and divide it {a} : {b} : {c}, in this order, according to the
  hours they worked. Find the difference between the shares of {three} and {one}.
- The ratio says that for every {a} dollars for {one} there are {b} dollars for {two} and {c} dollars for {three}.
| Read the ratio as equal parts: {one} gets {a} of them, {two} gets {b}, and {three} gets {c}.
- Altogether there are {a} + {b} + {c} = [parts] equal parts.
| Count the parts: {a} + {b} + {c} = [parts].
- The whole amount of ${total} is spread over {parts} parts, so one part is {total} ÷ {parts} = [part] dollars.
| Dividing the money by the number of parts, one part is worth {total} ÷ {parts} = [part] dollars.
- {one} receives {a} parts, which is {a} × {part} = [m1] dollars.
| For {one} this means {a} × {part} = [m1] dollars.
- {two} receives {b} parts, which is {b} × {part} = [m2] dollars.
| For {two} we get {b} × {part} = [m2] dollars.
- {three} receives {c} parts, which is {c} × {part} = [m3] dollars.
| The share of {three} is {c} × {part} = [m3] dollars.
- The three shares add up to {m1} + {m2} + {m3} = {total} dollars, so nothing is left over.
| Check that all the money is given out: {m1} + {m2} + {m3} = {total}, as it should be.
- The difference between the shares of {three} and {one} is {m3} - {m1} = {more} dollars.
| Compare {three} with {one}: {m3} - {m1} = {more} dollars.
~ There is a shorter way too. {three} has {c} - {a} = {gap} parts more than {one}, and {gap} × {part} = {more}.
- So {three} gets ${more} more than {one}.
| Therefore the share of {three} is larger by ${more}.
! $[more]
"""

PROBABILITY = """
? A bag holds {r} red, {b} blue and {g} green balls. Two balls are drawn one after the other without putting the first
  one back. What is the probability that both are red?
? {name} takes two marbles at random, without replacement, from a box with {r} red, {b} blue and {g} green marbles. How
  likely is it that both marbles are red?
? There are {r} red, {b} blue and {g} green cards in a hat. If two cards are pulled out together at random, what is the
  probability of two red ones?
- First count everything that can be drawn: {r} + {b} + {g} = [n].
| The total number of objects is {r} + {b} + {g} = [n], and each is equally likely to be drawn.
- Both have to be red, so the first one must be red and then the second one as well. The two probabilities are
  multiplied.
| We want red followed by red. For two events in a row we multiply the probability of the first by that of the second.
- On the first draw, {r} of the {n} possibilities are red, so the probability is {r}/{n}.
| The chance of red on the first draw is {r}/{n}, since {r} out of {n} are red.
- The first one is not put back. After a red one is gone, {r} - 1 = [r1] red ones remain.
| Suppose the first draw was red. Then the number of red ones goes down to {r} - 1 = [r1].
- The number of all that remain is smaller by one too: {n} - 1 = [n1].
| In total there are {n} - 1 = [n1] left to choose from.
- So the probability that the second one is also red is {r1}/{n1}.
| The chance of red on the second draw is therefore {r1}/{n1}.
- Multiply the numerators {r} and {r1}, which gives {r} × {r1} = [top].
| The numerator of the product is {r} × {r1} = [top].
- Multiply the denominators {n} and {n1}, which gives {n} × {n1} = [bottom].
| The denominator of the product is {n} × {n1} = [bottom].
- The probability of two red ones is {top}/{bottom}, and in lowest terms {top}/{bottom} = {p}/{q}.
| So the result is {top}/{bottom} = {p}/{q}, where the fraction is in lowest terms.
! [p]/{q}
"""

SEQUENCE = """
? A theatre has {a} seats in its first row, and every further row has {d} seats more than the one before it. How many
  seats are there in the first {n} rows?
? {name} saves ${a} in the first month and in every later month ${d} more than in the month before. How many dollars are
  saved after {n} months?
? An arithmetic sequence starts with {a} and each term is {d} larger than the one before. What is the sum of its first
  {n} terms?
- The numbers start at {a} and grow by {d} each time, so they form an arithmetic sequence.
| This is an arithmetic sequence with first term {a} and common difference {d}.
- Its sum is half the number of terms multiplied by the first term plus the last one, so we need the last term.
| To add the terms quickly, pair the first with the last. For that we have to know the last term.
- From the first term to the last of {n} terms there are {n} - 1 = [gaps] steps.
| The difference is added {n} - 1 = [gaps] times on the way from the first term to the last.
- These steps add {gaps} × {d} = [growth] to the first term.
| In total the terms grow by {gaps} × {d} = [growth].
- The last term is therefore {a} + {growth} = [last].
| Adding this to the first term gives the last one: {a} + {growth} = [last].
- The first and the last term together make {a} + {last} = [pair].
| Each pair from the two ends has the same sum, which is {a} + {last} = [pair].
- Multiply this by the number of terms: {n} × {pair} = [double].
| With {n} terms this gives {n} × {pair} = [double], which counts every term twice.
- Half of it is the sum we want: {double} ÷ 2 = {total}.
| Every term has been counted twice, so divide by two: {double} ÷ 2 = {total}.
~ As a check, the mean term is {pair} ÷ 2 = {middle}, and {n} × {middle} = {total}.
- So the first {n} terms add up to {total}.
| The total over all {n} terms is {total}.
! [total]
"""
